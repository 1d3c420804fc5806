import os
import signal
import threading

import pytest

from specresearch.cli.signals import INTERRUPTED, Stop, signals_interrupt


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_only_the_first_signal_interrupts(number: signal.Signals) -> None:
    before = signal.getsignal(number)
    with signals_interrupt() as stop:
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), number)
        for again in (signal.SIGTERM, signal.SIGHUP):
            os.kill(os.getpid(), again)
    assert stop.exit_code == 128 + number
    assert signal.getsignal(number) == before


def test_ignored_signals_stay_ignored() -> None:
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with signals_interrupt() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
        assert stop.signum is None
        assert signal.getsignal(signal.SIGHUP) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGHUP, before)


def test_ctrl_c_has_its_own_exit_code_and_other_threads_install_no_handlers() -> None:
    assert Stop().exit_code == INTERRUPTED == 130
    stops: list[Stop] = []

    def enter() -> None:
        with signals_interrupt() as stop:
            stops.append(stop)

    thread = threading.Thread(target=enter)
    thread.start()
    thread.join()
    assert stops == [Stop()]
