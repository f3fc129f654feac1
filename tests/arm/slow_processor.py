"""A plugin of pytest for emulated processors: Hypothesis does not object to examples that take long to make."""

from hypothesis import HealthCheck, settings

settings.register_profile("emulated", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("emulated")
