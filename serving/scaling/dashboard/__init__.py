"""The page `/pools` on Ray's dashboard, and the same as JSON for scripts.

Ray's dashboard keeps the door: its port, its token, its cookie. This package is one module of it, in a process of its
own: `site/` makes Ray load it, `module.py` is what Ray loads, `handlers.py` answers, `ray_port.py` asks the running
system, `page/` is what the browser gets.
"""
