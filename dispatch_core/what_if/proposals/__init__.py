"""Proposals (PIPs) that no release has, or that recorded topics do not use, as rules that recorded load can be put under.

A module has the rule of a proposal as pure functions and state, named after its concept, and the module with ``_run`` behind
its name puts it into a simulated dispatcher. ``catalogue`` lists the proposals, each as of a revision of its document, and
``runs`` goes from a proposal to its run. Everything around a proposal is the release's own: its selector, permits, draining
hashes and reads are the functions that simulate the release.
"""
