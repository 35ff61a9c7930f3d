"""`qkv train translate --ensemble`: one command trains models of several seeds, which translate together."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, final

from qkv.settings import build, check_tables, plain
from qkv.tasks.notes import note
from qkv.tasks.origin import Origin
from qkv.tasks.recipe import Tables
from qkv.tasks.run_folder import run_folder
from qkv.tasks.translate import recipe as training
from qkv.tasks.translate.members import write_members
from qkv.tasks.translate.settings import TRANSLATE, MemberSettings
from qkv.training.events import Outcome
from qkv.training.processes import current

_TABLE = "ensemble"


@final
@dataclass(frozen=True)
class EnsembleSettings:
    """All settings of a training of one model or several.

    Args:
        one: those of the first model; the seeds of the others count up from its seed.
        ensemble: how many models are trained.
    """

    one: training.TranslationSettings
    ensemble: MemberSettings


@final
class Ensembles:
    """Training one model or an ensemble, by the settings.

    Attributes:
        settings: its tables of settings.
    """

    settings = TRANSLATE

    def load_settings(self, tables: Tables) -> EnsembleSettings:
        """Build settings from nested dicts, checking all of them.

        Args:
            tables: those of the task, and `ensemble`; missing values get defaults.

        Returns:
            The settings.

        Raises:
            ConfigError: a name is unknown (the message suggests the closest one), or a value is invalid.

        Example:
            >>> RECIPE.load_settings({"ensemble": {"models": 2}}).ensemble.directions
            ('ahead', 'ahead')
        """
        check_tables(tables, self.settings.tables)
        members = build(MemberSettings, self.settings.current({_TABLE: tables.get(_TABLE, {})})[_TABLE], _TABLE)
        return EnsembleSettings(
            training.load_settings({name: tables[name] for name in tables if name != _TABLE}), members
        )

    def show_settings(self, settings: EnsembleSettings) -> dict[str, Any]:
        """Return the settings as nested dicts, the inverse of `load_settings`."""
        return {**training.show_settings(settings.one), _TABLE: plain(settings.ensemble)}

    def train(
        self,
        settings: EnsembleSettings,
        out: Path | None,
        device: str = "cpu",
        *,
        tensorboard: bool = False,
        origin: Origin | None = None,
    ) -> Outcome:
        """Train a model or an ensemble, or resume.

        Args:
            settings: files, tokens, model, training, ensemble.
            out: the run folder; for an ensemble the folder of its runs, one for each member.
            device: compute device.
            tensorboard: whether to also log to TensorBoard.
            origin: the run that provides initial weights and tokenizer; None to train from scratch.

        Returns:
            How it ended; of an ensemble, the last member that was trained.

        Raises:
            QkvError: any bad input; nothing already saved is lost.
        """
        folder, one, members = run_folder(out), settings.one, settings.ensemble
        names = [f"{number}-{way}" for number, way in enumerate(members.directions)] if members.ensemble > 1 else []
        if current().leads:
            write_members(folder, names)
        if not names:
            return training.train(one, folder, device, tensorboard=tensorboard, origin=origin)
        for number, (name, way) in enumerate(zip(names, members.directions, strict=True)):
            seed = one.training.seed + number
            note(f"Member {number + 1} of {len(names)}, seed {seed}: {folder / name}")
            settings_of_member = replace(one, training=replace(one.training, seed=seed))
            recipe = training.member(way, one.training.seed)
            outcome = recipe.train(settings_of_member, folder / name, device, tensorboard=tensorboard, origin=origin)
            if outcome.exit_code:
                break
        return outcome


RECIPE = Ensembles()
