"""Serve reports, Data Docs and what-if results in Airflow's web server, for users who are logged in."""
