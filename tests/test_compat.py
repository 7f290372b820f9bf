"""Each private name of another package that zoo.utils.compat uses is there, and does what it is
used for.
"""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from zoo import config
from zoo.utils import compat


@contextmanager
def still_in(package: str, function: str, instead: str) -> Iterator[None]:
    """Fail with a sentence that says which package took a name away, and what to do."""
    try:
        yield
    except (ImportError, AttributeError, TypeError, AssertionError) as error:
        version = importlib.metadata.version(package)
        pytest.fail(
            f"{package} {version} no longer has what zoo.utils.compat.{function} uses ({error}):"
            f" {instead}, or pin {package} to the version that its docstring names"
        )


def test_hydra_has_a_parser_of_its_flags() -> None:
    with still_in("hydra-core", "hydra_parser", "write the flags down in zoo/launch/command_line"):
        arguments = compat.hydra_parser().parse_args(["a=1", "-m", "--config-dir", "x"])
        assert (arguments.overrides, arguments.multirun) == (["a=1"], True)
        assert (arguments.config_dir, arguments.info, arguments.cfg) == ("x", None, None)


def test_hydra_runs_a_command_line_that_is_parsed_already(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with still_in("hydra-core", "hydra_main", "see what hydra.main calls now, and call that"):
        config.discover()
        arguments = compat.hydra_parser().parse_args(["norm=rms", "-c", "job", "-p", "norm.name"])
        compat.hydra_main(arguments, lambda _: None, str(config.CONF))
        assert capsys.readouterr().out == "rms\n"


def test_hydra_calls_the_callbacks_of_a_configuration() -> None:
    with still_in("hydra-core", "hydra_callbacks", "see what Hydra.run makes its HydraContext of"):
        told: list[str] = []
        callbacks = compat.hydra_callbacks(OmegaConf.create({}))
        callbacks.callbacks.append(SimpleNamespace(on_job_start=lambda **_: told.append("start")))
        callbacks.on_job_start(config=OmegaConf.create({}), task_function=print)
        assert told == ["start"]


def test_torch_tells_a_tensor_without_content() -> None:
    with still_in("torch", "is_fake", "see where torch keeps FakeTensor now"):
        fake = compat.fake_tensor_mode().from_tensor(torch.ones(2))
        assert compat.is_fake(fake)
        assert compat.is_fake(torch.ones(2, device="meta"))
        assert not compat.is_fake(torch.ones(2))


def test_torch_tells_storages_apart_without_content() -> None:
    with still_in("torch", "storage_key", "find another key of a storage that has no memory"):
        fake = compat.fake_tensor_mode().from_tensor(torch.ones(4))
        other = compat.fake_tensor_mode().from_tensor(torch.ones(4))
        assert compat.storage_key(fake) == compat.storage_key(fake.view(2, 2))
        assert compat.storage_key(fake) != compat.storage_key(other)


def test_torch_counts_changes_of_a_tensor() -> None:
    with still_in("torch", "times_written", "compare the contents alone in zoo.conformance"):
        tensor = torch.zeros(2)
        before = compat.times_written(tensor)
        tensor.add_(0)
        assert compat.times_written(tensor) > before


@pytest.mark.parametrize("operation", ["lerp", "sign_", "mul_", "add_", "lerp_"])
def test_torch_has_operations_on_lists(operation: str) -> None:
    with still_in("torch", "foreach", "loop over the tensors, which gives the same numbers"):
        tensors, others = [torch.full((2,), -4.0)], [torch.full((2,), 2.0)]
        given: dict[str, tuple[Any, ...]] = {
            "lerp": (tensors, others, 0.5),
            "lerp_": (tensors, others, 0.5),
            "sign_": (tensors,),
            "mul_": (tensors, 0.5),
            "add_": (tensors, others),
        }
        expected = {"lerp": -1.0, "lerp_": -1.0, "sign_": -1.0, "mul_": -2.0, "add_": -2.0}
        changed = compat.foreach(operation)(*given[operation])
        result = changed if operation == "lerp" else tensors
        assert [tensor.tolist() for tensor in result] == [[expected[operation]] * 2]


def test_torch_compiles_reads_of_numbers_where_it_is_asked_to() -> None:
    with still_in("torch", "compile_reads_of_numbers", "see what torch.compile's options offer"):
        import torch._dynamo

        with torch._dynamo.config.patch(capture_scalar_outputs=False):
            compat.compile_reads_of_numbers()
            assert torch._dynamo.config.capture_scalar_outputs


def test_torch_waits_for_data_workers_in_a_function_of_that_name() -> None:
    with still_in("torch", "came_from_a_data_worker", "see where the DataLoader's iterator waits"):
        iterator = torch.utils.data.dataloader._MultiProcessingDataLoaderIter
        assert compat.came_from_a_data_worker([iterator._get_data.__name__])
        assert not compat.came_from_a_data_worker(["forward"])


def test_wandb_forgets_a_run() -> None:
    wandb = pytest.importorskip("wandb")
    with still_in("wandb", "forget_wandb_run", "reset wandb.run, and see what else it sets"):
        compat.forget_wandb_run()
        assert wandb.run is None
        with pytest.raises(wandb.Error, match="init"):
            wandb.log({})
