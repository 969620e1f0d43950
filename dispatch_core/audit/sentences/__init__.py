"""Texts for people, written once: names, durations, lists, and one sentence for each reason that holds work back."""
