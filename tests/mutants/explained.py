"""Mutants that no test kills, each with the reason why that is right."""

EXPLAINED: dict[str, str] = {}
