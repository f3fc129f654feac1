"""Running models: state, parameters, sessions' options, cached programs, partitioned execution, profiles."""
