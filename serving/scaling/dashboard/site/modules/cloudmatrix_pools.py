"""Entry that Ray's dashboard imports among its own modules. A page that does not load must not take the dashboard with
it.
"""

import logging

try:
    from serving.scaling.dashboard import login, module  # noqa: F401 - the module's class registers itself

    login.let_through()
except Exception:
    logging.getLogger("ray.dashboard").exception("the page /pools could not be loaded")
