"""Why a graph was compiled: the nearest entry, what differs, the classic cause behind that."""
