"""A headless Chromium for the tests: without one a test is skipped, with CI=true it fails."""

import os

import browser
import pytest


def start(profile):
    """A session with an empty profile."""
    wanted()
    return browser.start(profile)


def wanted():
    """Skip or fail where there is no browser."""
    try:
        browser.programs()
    except browser.NoBrowser as missing:
        refuse = pytest.fail if os.environ.get("CI") == "true" else pytest.skip
        refuse(f"{missing}: the pages were NOT looked at in a browser")
