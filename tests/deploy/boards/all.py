"""All boards, by the names of their files."""

from collections.abc import Callable

from tests.deploy.boards.fabric import fabric
from tests.deploy.boards.hosts import hosts
from tests.deploy.boards.running import operator
from tests.deploy.boards.scaling import scaling
from tests.deploy.boards.user import user

BOARDS: dict[str, Callable[[], str]] = {
    "user": user, "operator": operator, "fabric": fabric, "hosts": hosts, "scaling": scaling,
}  # fmt: skip
