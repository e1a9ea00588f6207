"""`accdp doctor`: what usually goes wrong on a machine, found before a job does."""
