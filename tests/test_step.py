from offload_runtime.step import Copy, Simulation


def test_a_simulation_says_when_it_ends_and_where_it_peaks() -> None:
    copies = (Copy("a", "d2h", 10, 1.0, 3.0, 0.5), Copy("a", "h2d", 10, 5.0, 7.0, 0.5))
    simulation = Simulation((0.0, 2.0), (2.0, 4.5), copies, (7, 9), (0, 10))
    assert simulation.step_ms == 4.5
    assert simulation.stall_ms == 1.0
    assert (simulation.peak_bytes, simulation.peak_at) == (9, 1)
    assert simulation.hidden_fraction == 0.75


def test_an_empty_step_takes_no_time_and_no_memory() -> None:
    simulation = Simulation((), (), (), (), ())
    assert (simulation.step_ms, simulation.peak_bytes, simulation.peak_at) == (0.0, 0, 0)
    assert simulation.hidden_fraction is None
