"""A user's own update rule: servers make it of a module that they may import, and refuse it otherwise."""

from pathlib import Path

from process.conftest import ScriptWriter
from process.parameters.conftest import JobMaker
from process.parameters.prelude import PRELUDE as COMMON

RULE = '''
from dataclasses import dataclass
import stratagem as sg
from stratagem.parameters.rules import APPLIED, DROPPED, PushMachine, Verdict

@dataclass(frozen=True)
class Fresh(sg.UpdateRule):
    """A push is applied when it arrives, unless it is more than `limit` updates stale."""
    limit: int
    def machine(self, workers):
        return FreshMachine(self.limit)

class FreshMachine(PushMachine):
    def __init__(self, limit):
        self.limit = limit
    def complete(self, push, step, active):
        if step - push.base <= self.limit:
            return [Verdict(APPLIED, (push,))]
        return [Verdict(DROPPED, (push,), f"it is {step - push.base} updates stale")]
'''
PRELUDE = COMMON + "from fresh_rule import Fresh\n"


def test_servers_follow_a_rule_of_the_users(new_job: JobMaker, script: ScriptWriter, tmp_path: Path) -> None:
    (tmp_path / "fresh_rule.py").write_text(RULE)
    path = script("""
        from stratagem.parameters.push import Contribution
        strategy, state, step = start(update=Fresh(limit=2))
        assert strategy.num_replicas_in_sync == 1
        for _ in range(20):
            state, metrics = step(state, BATCH)
        assert len(strategy.gather(np.ones((1, 2)), axis=0)) == 1, "workers are not in step"
        model = state.recipe.home
        def push(behind):
            now = model.client.pull().step
            gradients = model.plan.scatter([np.zeros_like(each) for each in state.flat_params])
            shared = [np.zeros(each.shape, each.dtype) for each in model.plan.configs[0].commons]
            return model.client.push(Contribution(1, gradients, shared, base=now - behind))
        if strategy.is_chief:
            wait_for("done")
            before = model.client.dropped
            outcomes = [push(behind) for behind in range(5)]
            assert [each.kind for each in outcomes] == ["applied"] * 3 + ["dropped"] * 2, outcomes
            assert [each.staleness for each in outcomes] == [0, 1, 2, None, None]
            assert model.client.dropped == before + 2
            (report,) = [each["parameters"]["model-0"] for name, each in strategy.status().items() if "task:0" in name]
            assert report["rule"] == "Fresh(limit=2)"
            applied = sum(report["pushed"].values())
            assert report["global_step"] == applied == 45 - sum(report["dropped"].values())
            print("followed", flush=True)
        else:
            Path(__file__).with_name("done").touch()
        strategy.close()
    """)
    text = new_job(1, 1).launch("--ps", 2, "--workers", 2, "--allow-import", "fresh_rule", path).ends_well()
    assert "followed" in text


def test_servers_refuse_a_rule_that_they_may_not_import(
    new_job: JobMaker, script: ScriptWriter, tmp_path: Path
) -> None:
    (tmp_path / "fresh_rule.py").write_text(RULE)
    path = script("start(update=Fresh(limit=2))")
    launcher = new_job(1, 1).launch("--ps", 1, path)
    assert launcher.ends() == 1
    assert (
        "/job:ps/task:0 may not import 'fresh_rule' for an update rule; it was started with: none. Start it with "
        "`stratagem serve --allow-import fresh_rule` (or `stratagem run --allow-import fresh_rule`)"
    ) in launcher.text
