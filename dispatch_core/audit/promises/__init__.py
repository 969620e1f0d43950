"""The promises: the checks of each, the counts that they look at, and the reasons of its verdicts."""
