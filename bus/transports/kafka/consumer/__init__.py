"""Reading: a member of a group or a reader of its own, its partitions, their positions and their bytes."""
