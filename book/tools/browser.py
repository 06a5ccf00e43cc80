"""A headless Chromium, for the tests and for printing: taken from the path, or from CHROMIUM and CHROMEDRIVER."""

import os
import shutil
from pathlib import Path
from typing import Any

BROWSERS = ("chromium", "chromium-browser", "google-chrome", "google-chrome-stable")
FLAGS = (
    "--headless=new --no-sandbox --disable-gpu --disable-dev-shm-usage --disable-quic --no-first-run "
    "--disable-background-networking --disable-component-update --disable-sync --disable-extensions"
)
READY = """
const done = arguments[arguments.length - 1];
const math = window.MathJax && MathJax.startup ? MathJax.startup.promise : Promise.resolve();
math.then(() => document.fonts.ready).then(() => requestAnimationFrame(() => done(true)), e => done(String(e)));
"""
"""A script that returns True when formulas and fonts stand."""


class NoBrowser(Exception):
    """There is no Chromium with its driver."""


def programs() -> tuple[str, str]:
    """The browser and its driver."""
    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, BROWSERS)), None)
    driver = os.environ.get("CHROMEDRIVER") or shutil.which("chromedriver")
    if not (program and driver):
        raise NoBrowser("no Chromium with its driver on the path")
    return program, driver


def start(profile: Path) -> Any:
    """A session with an empty profile."""
    program, driver = programs()
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
