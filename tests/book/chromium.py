"""A headless Chromium for the tests: taken from the path, or from CHROMIUM and CHROMEDRIVER."""

import os
import shutil

import pytest

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync --disable-extensions"
)


def start(profile):
    """A session with an empty profile; without a browser the test is skipped, with CI=true it fails."""
    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    driver = os.environ.get("CHROMEDRIVER") or shutil.which("chromedriver")
    if not (program and driver):
        refuse = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        refuse("no Chromium with its driver on the path: the pages were NOT looked at in a browser")
    from selenium import webdriver

    options = webdriver.ChromeOptions()
    options.binary_location = program
    for flag in [*FLAGS.split(), f"--user-data-dir={profile}"]:
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"browser": "ALL", "performance": "ALL"})
    session = webdriver.Chrome(options=options, service=webdriver.ChromeService(driver))
    session.set_page_load_timeout(60)
    session.set_script_timeout(60)
    return session
