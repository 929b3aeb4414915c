"""Entry that Ray's dashboard imports among its own modules; a failure of the page must not end the dashboard."""

import logging

try:
    from serving.scaling.dashboard import login, module  # noqa: F401 - the module's class registers itself

    login.let_through()
except Exception:
    logging.getLogger("ray.dashboard").exception("the page /pools could not be loaded")
