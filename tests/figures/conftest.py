"""One headless Chromium for the figures that compute in the page."""

import chromium
import pytest

HEAD = '<meta charset="utf-8"><meta name="viewport" content="width=device-width">'


@pytest.fixture(scope="module")
def session(tmp_path_factory):
    """The browser; it goes when it is no longer looked at, since what moves in it would take time from other tests."""
    session = chromium.start(tmp_path_factory.mktemp("profile"))
    yield session
    session.quit()


@pytest.fixture
def opened(session, tmp_path):
    """Opens a figure as a file, 360 pixels wide; afterwards nothing was complained of, or asked of a host."""

    def open_figure(output):
        path = tmp_path / "figure.html"
        path.write_text(f'<!doctype html><html lang="en">{HEAD}{output.html}</html>', encoding="utf-8")
        metrics = {"width": 360, "height": 740, "deviceScaleFactor": 1, "mobile": False}
        session.execute_cdp_cmd("Emulation.setDeviceMetricsOverride", metrics)
        session.get_log("browser"), session.get_log("performance")
        session.get(path.as_uri())
        wide = session.execute_script("return document.scrollingElement.scrollWidth - innerWidth")
        assert wide <= 0, "the figure is wider than a phone"
        return session

    yield open_figure
    assert [entry["message"] for entry in session.get_log("browser") if entry["level"] == "SEVERE"] == []
    asked = [entry["message"] for entry in session.get_log("performance")]
    assert not [text for text in asked if "Network.requestWillBeSent" in text and '"url":"http' in text]
