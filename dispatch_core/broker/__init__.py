"""The model of the broker: releases and settings, hashing, selectors, ordering rules and dispatchers."""
