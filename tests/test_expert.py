"""What scripted_expert.py promises: it solves the task, it never hangs, and it fills a data set."""

import copy
import math

import numpy as np
import pytest

from pusht_env import COM_Y, PUSHER_RADIUS, PushTEnv, wrap
from scripted_expert import LENGTHS, OUTCOMES, PLANS, ScriptedExpert
from test_env import scene

DATA_NOISE = 0.08  # m/s, the noise that the data set is made with


def rollout(env_seed, noise, expert_seed=None):
    """Plays one episode; returns its number of steps and whether it was solved."""
    env, expert = PushTEnv(), ScriptedExpert(noise=noise, seed=env_seed if expert_seed is None else expert_seed)
    env.reset(env_seed)
    done = False
    while not done:
        _, _, done, info = env.step(expert.action(env))
    return env.steps, info["success"]


def frames(steps, stride=4):
    """Frames cached at steps 0, stride, 2 * stride, ... of an episode, each before the step is taken."""
    return -(-steps // stride)


@pytest.mark.parametrize("noise", [0.0, DATA_NOISE])
def test_solves_what_it_is_given(noise):
    lengths = []
    for seed in range(1000, 1016):
        steps, solved = rollout(seed, noise)
        assert solved, f"env seed {seed}"
        lengths.append(steps)
    assert 20 < min(lengths) and max(lengths) < 250


@pytest.mark.slow
@pytest.mark.parametrize("noise, least", [(0.0, 199), (DATA_NOISE, 195)])
def test_success_rate_over_200_seeds(noise, least):
    episodes = [rollout(seed, noise) for seed in range(200)]
    unsolved = [seed for seed, (_, solved) in enumerate(episodes) if not solved]
    print(f"noise {noise}: {200 - len(unsolved)} of 200 solved, longest {max(s for s, _ in episodes)} steps")
    assert 200 - len(unsolved) >= least, f"not solved: {unsolved}"
    assert unsolved == []  # a stuck episode (300 steps) would fill a held-out set with one picture


@pytest.mark.slow
def test_forty_episodes_cache_700_to_800_frames_for_every_seed():
    """Data set `seed` plays env and expert seeds seed .. seed + 39, hence 0 .. 58 in all."""
    cached = [frames(rollout(seed, DATA_NOISE)[0]) for seed in range(59)]
    counts = [sum(cached[seed : seed + 40]) for seed in range(20)]
    print(f"frames: min {min(counts)}, mean {np.mean(counts):.0f}, max {max(counts)}")
    assert 700 <= min(counts) and max(counts) <= 800
    assert np.mean(counts) == pytest.approx(740, abs=20)


def test_actions_are_velocities_and_asking_changes_nothing():
    env, expert = PushTEnv(), ScriptedExpert(noise=3.0, seed=1)
    env.reset(0)
    for _ in range(30):
        before = copy.deepcopy(env.__dict__)
        action = expert.action(env)
        assert action.shape == (2,) and action.dtype == np.float32 and np.abs(action).max() <= 1.0
        assert env.__dict__ == before
        env.step(action)


def test_same_seeds_same_actions_and_other_seeds_other_noise():
    def actions(seed, noise):
        env, expert, taken = PushTEnv(), ScriptedExpert(noise, seed), []
        env.reset(5)
        for _ in range(25):
            taken.append(expert.action(env))
            env.step(taken[-1])
        return np.stack(taken)

    np.testing.assert_array_equal(actions(3, 0.08), actions(3, 0.08))
    assert (actions(3, 0.08) != actions(4, 0.08)).any()
    np.testing.assert_array_equal(actions(3, 0.0), actions(4, 0.0))


def test_noise_is_gaussian_of_the_given_size():
    env = PushTEnv()
    env.reset(0)
    clean = ScriptedExpert().action(env)
    noise = np.stack([ScriptedExpert(0.08, seed).action(env) - clean for seed in range(1500)])
    assert np.abs(noise.mean(0)).max() < 0.01
    np.testing.assert_allclose(noise.std(0), 0.08, rtol=0.08)
    assert abs(np.corrcoef(noise.T)[0, 1]) < 0.1
    assert np.mean(np.abs(noise) < 0.08) == pytest.approx(0.683, abs=0.03)


def test_it_goes_around_the_block_never_through_it():
    """Without noise, the block moves in no step of an approach."""
    approached = 0
    for seed in range(40):
        env, expert = PushTEnv(), ScriptedExpert()
        env.reset(seed)
        done = False
        while not done:
            before, action = env.tee_pose, expert.action(env)
            approaching = expert._plan is not None and not expert._pushing
            done = env.step(action)[2]
            if approaching:
                approached += 1
                assert env.tee_pose == before, f"seed {seed}, step {env.steps}"
    assert approached > 200


def test_each_plan_starts_with_the_twist_in_the_table():
    for x, y, nx, ny, ux, uy, vx, vy, omega in PLANS.tolist():
        env = scene((0.1, 0.1, 0.0), (0.1 + x - PUSHER_RADIUS * nx, 0.1 + y - PUSHER_RADIUS * ny), substeps=50)
        env.step([0.002 * ux, 0.002 * uy])  # a fifth of a millimetre
        bx, by, yaw = env.tee_pose
        assert yaw / 2e-4 == pytest.approx(omega, rel=0.02, abs=0.05)
        gx, gy = bx - 0.1 - COM_Y * math.sin(yaw), by - 0.1 + COM_Y * (math.cos(yaw) - 1)
        np.testing.assert_allclose([gx / 2e-4, gy / 2e-4], [vx, vy], atol=0.02)


def test_each_plan_in_the_table_is_what_the_simulator_does():
    """The closed-form arcs against the simulation: every contact, every lean. They take no account of the
    contact rolling along the pusher as the block turns, so they are good for a few centimetres."""
    length = 1
    assert LENGTHS[length] == pytest.approx(0.025)
    for k in range(len(PLANS)):
        x, y, nx, ny = PLANS[k, :4]
        env = scene((0.1, 0.1, 0.0), (0.1 + x - PUSHER_RADIUS * nx, 0.1 + y - PUSHER_RADIUS * ny), substeps=20)
        env.step([0, 0])  # so that the expert does not take it for a new episode
        expert = ScriptedExpert()
        expert._plan, expert._left, expert._age, expert._pushing = PLANS[k].tolist(), LENGTHS[length], 0, True
        while expert._left > 1e-9:
            env.step(expert.action(env))
        ex, ey, turn = (outcome[k, length] for outcome in OUTCOMES)
        assert math.dist(env.tee_pose[:2], (0.1 + ex, 0.1 + ey)) < 0.005, k
        assert abs(wrap(env.tee_pose[2] - turn)) < 0.04, k


def test_an_expert_that_is_used_again_starts_afresh():
    env, expert = PushTEnv(), ScriptedExpert()
    for seed in range(6):
        fresh = ScriptedExpert()
        env.reset(seed)
        for _ in range(25):  # leaves in the middle of a push
            action = expert.action(env)
            np.testing.assert_array_equal(action, fresh.action(env))
            env.step(action)


def test_it_leaves_a_block_alone_that_lies_well():
    env = scene((0.01, 0.0, 0.05), (0.01, 0.031))
    expert, pose, done = ScriptedExpert(), env.tee_pose, False
    while not done:
        _, _, done, info = env.step(expert.action(env))
    assert info["success"] and env.steps == 5 and env.tee_pose == pose


@pytest.mark.parametrize("noise", [-0.1, math.nan, math.inf, "a", None], ids=repr)
def test_bad_noise(noise):
    with pytest.raises(ValueError, match="noise must be a finite number >= 0"):
        ScriptedExpert(noise=noise)


def test_bad_seed():
    with pytest.raises(ValueError, match="seed must be a whole number >= 0, got -1"):
        ScriptedExpert(seed=-1)
