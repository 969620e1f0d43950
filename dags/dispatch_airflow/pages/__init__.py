"""Reports, Data Docs and what-if results in Airflow's own web server, for whoever is logged in there."""
