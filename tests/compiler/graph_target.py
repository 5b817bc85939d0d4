"""Two small cases for the command line."""

from capwise.models.footguns import FOOTGUNS


def cases():
    return [FOOTGUNS["opaque op"].case(), FOOTGUNS["times the number of tokens"].case()]
