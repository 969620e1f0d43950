"""The life of a key, an entry or a consumer, told from a log: ``subject`` finds whom, ``life`` collects, ``tell`` tells."""
