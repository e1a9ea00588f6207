"""Starting jobs: `accdp run`, and the MPS daemons that their ranks share GPUs through."""
