"""Importers: logs and settings from other sources than recorded log files."""
