"""The page `/pools` on Ray's dashboard, and the same as JSON for scripts.

Ray's dashboard provides port, token and cookie. This package is a module of it, in a process of its own: `site/` makes
Ray load `module.py`, `handlers.py` has the HTTP handlers, `ray_port.py` accesses the running system, and `page/` has
the files for the browser.
"""
