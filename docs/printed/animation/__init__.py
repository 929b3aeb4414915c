"""The animation at the top of README.md, from a real run.

    python -m docs.printed.animation record    a real system under load, a kill, a scale-up -> timeline.json (a minute)
    python -m docs.printed.animation draw      timeline.json -> docs/assets/animation.svg; --at S one still picture

Times are those of the run. Its steps are held at 50 ms, a large model's pace, so that a reader can follow.
"""
