"""Store rows: the tables' contracts, Delta tables, staged files, and the ledger of runs."""
