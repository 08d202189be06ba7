"""Services that a client knows by name."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest

from accordion_client import connect
from accordion_client.commands.cli_app import run_command
from accordion_client.machine.profiles import load_client_settings
from accordion_service.errors import SettingsError
from tests.unit.service.conftest import Accordion

TWO = """
default = "lab"

[profiles.lab]
url = "https://lab.example"
token_file = "lab.token"
request_timeout_s = 3

[profiles.cloud]
url = "https://cloud.example"
"""


@pytest.fixture
def config(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.setenv("ACCORDION_HOME", str(tmp_path / "home"))
    for name in ("URL", "TOKEN", "TOKEN_FILE", "ADMIN_TOKEN", "PROFILE", "REQUEST_TIMEOUT_S"):
        monkeypatch.delenv(f"ACCORDION_{name}", raising=False)
    (tmp_path / "accordion").mkdir()
    token = tmp_path / "accordion/lab.token"
    token.write_text("a token of the lab\n")
    token.chmod(0o600)
    file = tmp_path / "accordion/config.toml"
    file.write_text(TWO)
    return file


def found(url: str = "") -> tuple[str, str | None]:
    """URL and token of the client's settings."""
    settings = load_client_settings(url)
    return url or settings.url, settings.client_token()


def test_the_default_profile_names_the_service_and_its_token(config: Path) -> None:
    assert found() == ("https://lab.example", "a token of the lab")
    assert load_client_settings().request_timeout_s == 3
    with connect() as client:
        assert client.url == "https://lab.example"


def test_the_list_of_settings_has_those_of_the_profile(
    accordion: Accordion, config: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ACCORDION_PROFILE", "cloud")
    shown = {line["name"]: line for line in accordion("settings", "--json").json()["items"]}
    assert shown["ACCORDION_URL"]["value"] == "https://cloud.example"
    assert not shown["ACCORDION_URL"]["is_default"]


def test_a_variable_chooses_another_profile(monkeypatch: pytest.MonkeyPatch, config: Path) -> None:
    monkeypatch.setenv("ACCORDION_PROFILE", "cloud")
    assert found() == ("https://cloud.example", None)


def test_an_option_chooses_the_profile_of_one_command(
    alone: Accordion, monkeypatch: pytest.MonkeyPatch, config: Path
) -> None:
    monkeypatch.setenv("ACCORDION_PROFILE", "lab")

    def asked(*options: str) -> str:
        shown = alone(*options, "settings", "--json").json()["items"]
        return next(line["value"] for line in shown if line["name"] == "ACCORDION_URL")

    assert asked("--profile", "cloud") == "https://cloud.example"
    assert asked() == "https://lab.example"
    for words in (("--profile", "nowhere", "list"), ("list", "--profile", "nowhere")):
        said = alone(*words)
        assert (said.code, said.out) == (2, "")
        assert "'nowhere', and there is no such profile; those of" in said.err
    assert "--profile" in alone("whoami", "--help").out


@pytest.mark.parametrize(
    "words",
    [
        ("--profile", "lab", "list", "--url", "https://other.example"),
        ("list", "--url", "https://other.example", "--profile", "lab"),
    ],
)
def test_a_profile_and_a_url_are_refused(
    alone: Accordion, config: Path, words: tuple[str, ...]
) -> None:
    said = alone(*words)
    assert said.code == 2
    told = " ".join(said.err.replace("│", " ").split())
    assert "--profile and --url both name a service; leave one of them out" in told


def test_the_names_of_profiles_are_completed(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str], config: Path
) -> None:
    for word, found in (("", "cloud lab"), ("l", "lab")):
        monkeypatch.setenv("_ACCORDION_COMPLETE", "complete_bash")
        monkeypatch.setenv("COMP_WORDS", f"accordion list --profile {word}")
        monkeypatch.setenv("COMP_CWORD", "3")
        with pytest.raises(SystemExit):
            run_command([])
        assert " ".join(sorted(capfd.readouterr().out.split())) == found


def test_an_option_and_a_variable_that_name_two_services_are_refused(
    alone: Accordion, monkeypatch: pytest.MonkeyPatch, config: Path
) -> None:
    monkeypatch.setenv("ACCORDION_URL", "https://other.example")
    said = alone("--profile", "lab", "list")
    assert said.code == 2
    words = " ".join(said.err.replace("│", " ").split())
    assert "ACCORDION_URL names a service too (https://other.example); unset it" in words


def test_the_token_of_a_profile_goes_to_no_other_service(
    monkeypatch: pytest.MonkeyPatch, config: Path
) -> None:
    assert found("https://elsewhere.example") == ("https://elsewhere.example", None)
    monkeypatch.setenv("ACCORDION_URL", "https://other.example")
    assert found() == ("https://other.example", None)


def test_variables_go_before_the_profile(monkeypatch: pytest.MonkeyPatch, config: Path) -> None:
    monkeypatch.setenv("ACCORDION_TOKEN", "a token of my own")
    monkeypatch.setenv("ACCORDION_REQUEST_TIMEOUT_S", "7")
    assert found() == ("https://lab.example", "a token of my own")
    assert load_client_settings().request_timeout_s == 7


def test_without_the_file_nothing_changes(config: Path) -> None:
    config.unlink()
    assert found() == ("", None)


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("default = 'office'\n[profiles.lab]\nurl = 'https://a.example'", "default of"),
        ("default = 'lab'", "config.toml are none"),
        ("default = ", "config.toml cannot be read: Invalid value"),
        ("[profiles.lab]\nurl = 'a.example'", "profiles.lab.url of"),
        ("[profiles.lab]\nulr = 'https://a.example'", "a profile has url, token_file, request_"),
        ("[profile.lab]\nurl = 'https://a.example'", "profile of"),
    ],
)
def test_a_wrong_file_is_told_with_its_path(
    alone: Accordion, config: Path, text: str, sentence: str
) -> None:
    config.write_text(text)
    said = alone("list")
    assert (said.code, said.out) == (2, "")
    assert str(config) in said.err
    assert sentence in said.err


def test_a_token_that_others_can_read_or_nobody_is_refused(config: Path) -> None:
    token = config.with_name("lab.token")
    token.chmod(0o644)
    with pytest.raises(SettingsError, match=r"of profile 'lab' is .*others can read; chmod 600"):
        load_client_settings()
    token.unlink()
    with pytest.raises(SettingsError, match=r"token_file of profile 'lab' is .*cannot be read"):
        load_client_settings()


def test_a_service_on_this_home_goes_before_the_default_profile_only(
    monkeypatch: pytest.MonkeyPatch, config: Path
) -> None:
    running = SimpleNamespace(url="http://127.0.0.1:9", token_file="")
    monkeypatch.setattr("accordion_service.settings.home.Home.running", lambda _: running)
    assert found() == ("", None)
    monkeypatch.setenv("ACCORDION_PROFILE", "lab")
    assert found() == ("https://lab.example", "a token of the lab")
