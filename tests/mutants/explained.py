"""Mutants that no test kills, each with the reason why that is right."""

EXPLAINED: dict[str, str] = {
    "pass storage is identity": "padding starts from the same facts and derives them anew; the stage is there to be "
    "looked at alone",
}
