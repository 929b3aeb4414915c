"""The page as a person sees it: opened, and read."""

from tests.scaling.dashboard.chromium import Page
from tests.scaling.dashboard.conftest import TOKEN, FakeDashboard

MORE = "[aria-label='One replica of decode more']"
LESS = "[aria-label='One replica of decode less']"
NUMBER = "[aria-label='Replicas of decode']"
DECODE = "article[aria-label='Pool decode']"


async def open_page(page: Page, dashboard: FakeDashboard) -> None:
    """Log in and wait for the pools."""
    await page.log_in(dashboard.url, TOKEN)
    assert await page.go(f"{dashboard.url}/pools") == 200
    await page.wait("document.querySelectorAll('.pool').length === 3")


async def enter_number(page: Page, number: str) -> None:
    """Enter this number of replicas of decode."""
    await page.click(NUMBER)
    await page.run("document.activeElement.select()")
    await page.type(number)
    await page.press("Enter")


async def text(page: Page, selector: str) -> str:
    """Visible text, with plain spaces."""
    found: str = await page.run(f"document.querySelector({selector!r}).innerText")
    return found.replace("\u00a0", " ")
