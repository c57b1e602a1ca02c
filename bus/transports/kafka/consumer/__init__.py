"""Reading: group members and group-less readers, their partitions, positions and record parsing."""
