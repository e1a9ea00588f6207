"""Starting jobs: `accdp run`."""
