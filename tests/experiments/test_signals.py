import pickle
import signal
import subprocess
import sys
import threading

import pytest
from translution_runs.signals import Interrupted, Stop, stop_on_signals

SIGNALS = [signal.SIGINT, signal.SIGTERM]


@pytest.fixture
def seen():
    """Handlers as an embedding program might have set them; the list says which signals reached them."""
    found = []
    old = {number: signal.signal(number, lambda n, frame: found.append(n)) for number in SIGNALS}
    yield found
    for number, handler in old.items():
        signal.signal(number, handler)


@pytest.mark.parametrize("number", SIGNALS)
def test_the_first_signal_is_noted(seen, number):
    with stop_on_signals() as stop:
        assert stop == Stop(0) and not stop.requested
        signal.raise_signal(number)
        assert stop.requested == number
    assert seen == []


@pytest.mark.parametrize("first", SIGNALS)
@pytest.mark.parametrize("second", SIGNALS)
def test_the_second_signal_acts_at_once(seen, first, second):
    with stop_on_signals() as stop:
        signal.raise_signal(first)
        signal.raise_signal(second)
        assert seen == [second] and stop.requested == first


def test_the_old_handlers_are_back_after_an_error_too(seen):
    before = [signal.getsignal(number) for number in SIGNALS]
    with pytest.raises(KeyError), stop_on_signals():
        assert all(signal.getsignal(number) != handler for number, handler in zip(SIGNALS, before, strict=True))
        raise KeyError
    assert [signal.getsignal(number) for number in SIGNALS] == before


def test_an_interrupt_is_pythons_own_the_second_time():
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt), stop_on_signals():
            signal.raise_signal(signal.SIGINT)
            signal.raise_signal(signal.SIGINT)
    finally:
        signal.signal(signal.SIGINT, before)


def test_blocks_within_blocks_note_once_each(seen):
    with stop_on_signals() as outer, stop_on_signals() as inner:
        signal.raise_signal(signal.SIGTERM)
        assert (outer.requested, inner.requested) == (0, signal.SIGTERM)
        signal.raise_signal(signal.SIGTERM)
        assert outer.requested == signal.SIGTERM and seen == []


def test_what_a_block_around_has_noted_counts_within(seen):
    with stop_on_signals() as outer:
        signal.raise_signal(signal.SIGTERM)
        with stop_on_signals() as inner:
            assert inner.requested == outer.requested == signal.SIGTERM
            signal.raise_signal(signal.SIGINT)  # the second that the inner sees, and the outer
            assert seen == [signal.SIGINT]


def test_an_ignored_signal_stays_ignored(seen):
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    with stop_on_signals() as stop:
        signal.raise_signal(signal.SIGINT)
        assert stop.requested == 0
    assert signal.getsignal(signal.SIGINT) == signal.SIG_IGN


def test_outside_the_main_thread_nothing_is_touched(seen):
    before, found = [signal.getsignal(number) for number in SIGNALS], []

    def work():
        with stop_on_signals() as stop:
            found.append((stop.requested, [signal.getsignal(number) for number in SIGNALS]))

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found == [(0, before)]


LOOP = """
import sys, time
from importlib.util import module_from_spec, spec_from_file_location
spec = spec_from_file_location("signals", sys.argv[1])  # alone: the library around it takes seconds to import
signals = module_from_spec(spec)
sys.modules["signals"] = signals
spec.loader.exec_module(signals)
with signals.stop_on_signals() as stop:
    print("ready", flush=True)
    while not stop.requested:
        time.sleep(0.01)
    print("noted", flush=True)
    if sys.argv[2] == "stubborn":
        time.sleep(60)
    sys.exit(signals.Interrupted(stop.requested, 7).exit_code)
"""


@pytest.mark.parametrize(("number", "manner", "code"), [
    (signal.SIGINT, "obedient", 130), (signal.SIGTERM, "obedient", 143), (signal.SIGTERM, "stubborn", -15)])
def test_a_process_ends_after_its_step_or_at_the_second_signal(number, manner, code):
    source = sys.modules[stop_on_signals.__module__].__file__
    process = subprocess.Popen([sys.executable, "-c", LOOP, source, manner], stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "ready\n"
    process.send_signal(number)
    assert process.stdout.readline() == "noted\n"
    if manner == "stubborn":
        process.send_signal(number)
    assert process.wait() == code
    process.stdout.close()


def test_the_error_says_what_happened_and_travels_between_processes():
    error = pickle.loads(pickle.dumps(Interrupted(signal.SIGTERM, 12)))
    assert (error.signal, error.step, error.exit_code) == (15, 12, 143)
    assert str(error) == "stopped by SIGTERM after step 12; started again, the run goes on from there"
    assert Interrupted(signal.SIGINT, 1).exit_code == 130
