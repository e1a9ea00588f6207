"""`accdp ps`: what the ranks on a host do, and for whom they wait."""
