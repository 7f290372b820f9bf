"""Seeds of RNG streams: distinct and constant."""

from zoo.utils.seeding import derive


def test_derived_seeds_differ_by_seed_and_by_name():
    streams = [
        (0,),
        (1,),
        (0, "data"),
        (0, "data", 0),
        (0, "data", "0"),
        (0, "da", "ta"),
        (0, "data", 1),
    ]
    seeds = {derive(*stream) for stream in streams}
    assert len(seeds) == len(streams)
    assert all(0 <= seed < 1 << 63 for seed in seeds)


def test_derived_seeds_never_change():
    assert (
        derive(0, "init") == 1749912909633406932
    )  # another value here would change every run that was ever made
