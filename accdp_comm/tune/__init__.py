"""`accdp tune`: find ranks, batch size, loader workers and codec that work off most samples a second."""
