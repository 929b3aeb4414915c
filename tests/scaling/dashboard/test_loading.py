"""Ray finds the page, and only Ray's dashboard does. Checks the pinned Ray for the features that the page needs."""

import inspect
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import ray
from aiohttp import web
from aiohttp.test_utils import make_mocked_request
from ray._private.authentication import http_token_authentication
from ray.dashboard import http_server_head
from ray.dashboard.modules.serve import serve_head
from ray.dashboard.subprocesses.module import SubprocessModule
from ray.dashboard.subprocesses.routes import SubprocessRouteTable

from serving.scaling.dashboard.module import PoolsHead

REPOSITORY = Path(__file__).resolve().parents[3]
SITE = REPOSITORY / "serving" / "scaling" / "dashboard" / "site"

NAMES = """
import pkgutil
import ray.dashboard.modules
print([module.name for module in pkgutil.iter_modules(ray.dashboard.modules.__path__)])
"""
LOOK = """
from ray.dashboard.subprocesses.module import SubprocessModule
from ray.dashboard.utils import get_all_modules
print(sorted(module.__name__ for module in get_all_modules(SubprocessModule)))
"""


def run(script: Path, text: str, *path: Path) -> str:
    """Output of a script started with these folders on PYTHONPATH."""
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(text)
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    done = subprocess.run(
        [sys.executable, "-u", str(script)], env=environment, capture_output=True, text=True, check=True, cwd="/"
    )
    return done.stdout + done.stderr


def test_the_folder_for_other_clusters_is_told() -> None:
    told = subprocess.check_output([sys.executable, "-m", "serving.scaling.dashboard"], text=True, cwd=REPOSITORY)
    assert told == f"{SITE}\n"
    assert f"ENV PYTHONPATH=/app/{SITE.relative_to(REPOSITORY)}\n" in (REPOSITORY / "Dockerfile").read_text()


def test_the_dashboard_starts_from_the_file_that_is_looked_for() -> None:
    assert (Path(ray.__file__).parent / "dashboard" / "dashboard.py").exists()
    source = inspect.getsource(ray._private.services.start_api_server)
    assert 'os.path.join(RAY_PATH, dashboard_dir, "dashboard.py")' in source


def test_rays_dashboard_finds_the_page_among_its_modules(tmp_path: Path) -> None:
    found = run(tmp_path / "ray" / "dashboard" / "dashboard.py", LOOK, SITE)
    assert "PoolsHead" in found
    assert "ServeHead" in found


@pytest.mark.parametrize(("script", "path"), [("agent.py", [SITE]), ("dashboard.py", [])])
def test_no_other_process_does_nor_without_our_folder(tmp_path: Path, script: str, path: list[Path]) -> None:
    found = run(tmp_path / "ray" / "dashboard" / script, NAMES, *path)
    assert "'serve'" in found
    assert "cloudmatrix_pools" not in found


def test_a_page_that_does_not_load_leaves_the_dashboard_alone(tmp_path: Path) -> None:
    broken = tmp_path / "broken" / "serving"
    broken.mkdir(parents=True)
    (broken / "__init__.py").write_text("raise RuntimeError('broken installation')")
    load = "import ray.dashboard.modules.cloudmatrix_pools\nprint('went on')\n"
    found = run(tmp_path / "ray" / "dashboard" / "dashboard.py", load, SITE, broken.parent)
    assert "the page /pools could not be loaded" in found
    assert "broken installation" in found
    assert "went on" in found


@pytest.mark.parametrize("script", ["ray/dashboard/dashboard.py", "worker.py"])
def test_another_sitecustomize_still_runs(tmp_path: Path, script: str) -> None:
    other = tmp_path / "other"
    other.mkdir()
    (other / "sitecustomize.py").write_text("print('the other one ran')")
    assert "the other one ran" in run(tmp_path / script, "", SITE, other)


def test_the_module_is_inert_when_a_fork_server_imports_it(tmp_path: Path) -> None:
    told = run(
        tmp_path / "preload.py",
        "import sys, threading\nimport serving.scaling.dashboard.module\n"
        "heavy = [name for name in ('torch', 'ray.serve', 'serving.cluster') if name in sys.modules]\n"
        "print(threading.active_count(), heavy)",
        SITE,
    )
    assert told.splitlines()[-1] == "1 []"


def test_each_route_is_bound_to_a_method() -> None:
    assert issubclass(PoolsHead, SubprocessModule)
    assert PoolsHead in SubprocessModule.__subclasses__(), "Ray takes direct subclasses only"
    methods: list[Any] = [method for _, method in inspect.getmembers(PoolsHead, inspect.isfunction)]
    ours = {(one.__route_method__, one.__route_path__) for one in methods if hasattr(one, "__route_path__")}
    assert len(ours) == 19
    for method, path in ours:
        assert path in SubprocessRouteTable._bind_map[method]


def test_rays_server_takes_the_maker_of_its_middleware_by_name() -> None:
    source = inspect.getsource(http_server_head.HttpServerDashboardHead.run)
    assert "get_token_auth_middleware(" in source
    assert "aiohttp, public_exact_paths, public_path_prefixes" in source
    assert inspect.signature(http_token_authentication.get_token_auth_middleware).parameters.keys() == {
        "aiohttp_module", "whitelisted_exact_paths", "whitelisted_path_prefixes",
    }  # fmt: skip


@pytest.mark.parametrize(
    "server_first",
    [
        True,
        pytest.param(
            False,
            marks=pytest.mark.nightly(
                "tests/scaling/dashboard/test_loading.py::test_only_what_everybody_may_read_is_let_through"
            ),
        ),
    ],
)
def test_only_what_everybody_may_read_is_let_through(tmp_path: Path, server_first: bool) -> None:
    lines = ["import ray.dashboard.modules.cloudmatrix_pools", "from ray.dashboard import http_server_head"]
    told = run(
        tmp_path / "ray" / "dashboard" / "dashboard.py",
        "\n".join(reversed(lines) if server_first else lines) + "\n"
        "from serving.scaling.dashboard import login as public_paths\npublic_paths.let_through()\n"
        "made = http_server_head.get_token_auth_middleware\n"
        "print(hasattr(made, '__wrapped__'), hasattr(made.__wrapped__, '__wrapped__'), public_paths.public_paths())",
        SITE,
        REPOSITORY,
    ).splitlines()[-1]
    assert told.startswith("True False ('/pools', '/experts', '/pools/login', '/pools/client.js', ")
    assert "api" not in told


@pytest.mark.asyncio
async def test_our_answer_to_rays_scale_route_comes_before_rays() -> None:
    """For this application only, and for any order of registration."""
    rays = "/api/v1/applications/{application_name}/deployments/{deployment_name}/scale"
    ours = "/api/v1/applications/cloudmatrix/deployments/{pool}/scale"
    assert f'"{rays}"' in inspect.getsource(serve_head)
    assert ours in SubprocessRouteTable._bind_map["POST"]
    for paths in ((rays, ours), (ours, rays)):
        router = web.Application().router
        for path in paths:
            router.add_post(path, _nobody)
        for application, expected in (("cloudmatrix", ours), ("another", rays)):
            path = f"/api/v1/applications/{application}/deployments/decode/scale"
            found = await router.resolve(make_mocked_request("POST", path))
            assert found.route.resource is not None
            assert found.route.resource.canonical == expected


async def _nobody(request: web.Request) -> web.Response:
    raise AssertionError(request.path)
