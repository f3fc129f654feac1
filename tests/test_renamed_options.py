"""Options that were renamed keep their former names as deprecated aliases."""

import warnings

import pytest

from ortrain import SessionOptions

FORMER = [("direct_convolution", True, "enable_winograd", False), ("vector_products", True, "enable_amx", False),
          ("recomputation", 0.25, "rematerialization", 0.25)]


@pytest.mark.parametrize("former, given, name, meant", FORMER)
def test_a_former_name_in_the_constructor_sets_the_new_option(former, given, name, meant):
    with pytest.warns(DeprecationWarning, match=f"{former} was renamed: use {name}"):
        options = SessionOptions(**{former: given})
    assert getattr(options, name) == meant


@pytest.mark.parametrize("former, given, name, meant", FORMER)
def test_a_former_name_as_attribute_reads_and_sets_the_new_option(former, given, name, meant):
    options = SessionOptions()
    with pytest.warns(DeprecationWarning, match=former):
        setattr(options, former, given)
    assert getattr(options, name) == meant
    with pytest.warns(DeprecationWarning, match=former):
        assert getattr(options, former) == given


@pytest.mark.parametrize("former, given, name, meant", FORMER)
def test_a_former_name_as_configuration_entry_sets_the_new_option(former, given, name, meant):
    options = SessionOptions()
    with pytest.warns(DeprecationWarning, match=former):
        options.add_session_config_entry(f"ortrain.{former}", "1" if given is True else str(given))
    assert getattr(options, name) == meant


def test_the_warning_names_the_line_of_the_caller():
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        SessionOptions(recomputation=0.1)
    assert caught[0].filename == __file__


def test_new_names_do_not_warn():
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        options = SessionOptions(enable_winograd=False, enable_amx=False, rematerialization=0.1)
    assert not options.enable_winograd and not options.enable_amx and options.rematerialization == 0.1
