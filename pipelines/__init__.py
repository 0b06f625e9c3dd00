"""What happens to a study and to a batch of them: prepare, tile, blend, finish, report."""
