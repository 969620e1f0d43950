"""Write an HTML page for each subscription of a judged interval."""
