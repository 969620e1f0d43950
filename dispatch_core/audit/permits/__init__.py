"""The permit ledger: permits granted, used and returned, and findings where a broker's counts are off for good."""
