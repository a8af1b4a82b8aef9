"""What pusht_env.py promises. Geometry is checked against shapely, which shares no code with it."""

import copy
import doctest
import hashlib
import math
import os
import pickle
import subprocess
import sys

import numpy as np
import pytest
import shapely
from hypothesis import example, given, settings
from hypothesis import strategies as st
from shapely import contains_xy
from shapely.geometry import Point, Polygon

import pusht_env
from pusht_env import C2, COM_Y, CONTROL_DT, MU, PUSHER_RADIUS, WALL, PushTEnv, coverage, wrap

OUTLINE = [(-.06, .015), (.06, .015), (.06, -.015), (.015, -.015),
           (.015, -.105), (-.015, -.105), (-.015, -.015), (-.06, -.015)]  # fmt: skip
TEE = Polygon(OUTLINE)
PIXEL = 2 * pusht_env.HALF_EXTENT / 64
poses = st.tuples(st.floats(-0.25, 0.25), st.floats(-0.25, 0.25), st.floats(-math.pi, 3.14159))


def tee_at(x, y, yaw):
    s, c = math.sin(yaw), math.cos(yaw)
    return Polygon([(x + c * u - s * v, y + s * u + c * v) for u, v in OUTLINE])


def gap(env):
    """Distance between the pusher's rim and the block; negative: overlap."""
    tee, centre = tee_at(*env.tee_pose), Point(env.pusher_pos)
    distance = tee.exterior.distance(centre)
    return (-distance if tee.contains(centre) else distance) - PUSHER_RADIUS


def scene(pose, pusher, substeps=10):
    """An episode in which block and pusher stand where we want them."""
    env = PushTEnv(substeps)
    env.reset(0)
    x, y, yaw = pose
    env._place(x - COM_Y * math.sin(yaw), y + COM_Y * math.cos(yaw), yaw)
    env._px, env._py = pusher
    return env


def touching(pose, x, y, nx, ny, air=0.0, substeps=10):
    """A scene with the pusher at the block's outline point (x, y), (nx, ny) being the way into the block,
    all in the block's frame; and that way in the world."""
    s, c = math.sin(pose[2]), math.cos(pose[2])
    u, v = x - (PUSHER_RADIUS + air) * nx, y - (PUSHER_RADIUS + air) * ny
    pusher = pose[0] + c * u - s * v, pose[1] + s * u + c * v
    return scene(pose, pusher, substeps), np.array([c * nx - s * ny, s * nx + c * ny])


def centre_of_mass(pose):
    x, y, yaw = pose
    return np.array([x - COM_Y * math.sin(yaw), y + COM_Y * math.cos(yaw)])


def in_block_frame(env):
    (x, y, yaw), (px, py) = env.tee_pose, env.pusher_pos
    s, c = math.sin(yaw), math.cos(yaw)
    return np.array([c * (px - x) + s * (py - y), c * (py - y) - s * (px - x)])


# ---- the block ----


def test_the_task_is_the_published_one():
    task = {"TARGET_POSE": (0, 0, 0), "MAX_STEPS": 300, "POS_TOL": 0.03, "ANG_TOL": 0.2, "HOLD_STEPS": 5, "MU": 0.3,
            "WALL": 0.4, "PUSHER_RADIUS": 0.015, "CONTROL_DT": 0.1, "SUBSTEPS": 10, "MAX_SPEED": 1.0}  # fmt: skip
    assert {name: getattr(pusht_env, name) for name in task} == task


def test_area_centre_of_mass_and_mean_distance():
    assert pusht_env.TEE_AREA == pytest.approx(TEE.area, abs=1e-12)
    assert (0.0, COM_Y) == pytest.approx(TEE.centroid.coords[0], abs=1e-12)
    grid = (np.arange(2400) + 0.5) * 5e-5 - 0.06
    x, y = np.meshgrid(grid, grid - 0.045)
    inside = ((np.abs(x) < 0.06) & (np.abs(y) < 0.015)) | ((np.abs(x) < 0.015) & (y < 0.0) & (y > -0.105))
    assert math.sqrt(C2) == pytest.approx(np.sqrt(x**2 + (y - COM_Y) ** 2)[inside].mean(), rel=1e-4)


@given(st.floats(-50, 50))
@example(math.pi)
@example(-math.pi)
@example(3 * math.pi)
@example(-math.pi - 1e-16)
def test_wrap(angle):
    wrapped = wrap(angle)
    assert -math.pi <= wrapped < math.pi
    assert math.cos(wrapped - angle) == pytest.approx(1.0, abs=1e-12)


# ---- reset and the interface ----


def test_reset_is_stratified_and_within_its_ranges():
    yaws, distances, bearings = [], [], []
    for seed in range(400):
        env = PushTEnv()
        env.reset(seed)
        (x, y, yaw), (px, py) = env.tee_pose, env.pusher_pos
        distances.append(math.hypot(x, y))
        bearing = math.atan2(y, x) % (2 * math.pi)
        assert bearing // (math.pi / 2) == seed % 4
        bearings.append(bearing % (math.pi / 2))
        yaws.append(yaw)
        assert max(abs(px), abs(py)) <= 0.32 and math.hypot(px - x, py - y) >= 0.13
        assert env.steps == 0 and gap(env) > 0
    assert 0.10 <= min(distances) < 0.103 and 0.237 < max(distances) <= 0.24
    assert np.mean(distances) == pytest.approx(0.17, abs=0.01)  # uniform in distance, not in area
    assert min(bearings) < 0.05 and max(bearings) > math.pi / 2 - 0.05
    assert np.mean(bearings) == pytest.approx(math.pi / 4, abs=0.1)
    assert min(yaws) < -3.1 and max(yaws) > 3.1 and abs(np.mean(yaws)) < 0.3


def test_observation_layout():
    env = PushTEnv()
    obs = env.reset(5)
    for _ in range(3):
        x, y, yaw = env.tee_pose
        expected = [*env.pusher_pos, x, y, math.sin(yaw), math.cos(yaw), 0, 0, 0, 1]
        assert obs.dtype == np.float32 and obs.shape == (10,)
        np.testing.assert_array_equal(obs, np.array(expected, np.float32))
        obs, reward, done, info = env.step(np.array([0.3, -0.2], np.float32))
        assert type(reward) is float and type(done) is bool and type(info["success"]) is bool
        assert set(info) == {"success", "pos_err", "ang_err", "coverage"}
    assert env.steps == 3


def test_pusher_moves_by_velocity_times_time_and_speed_is_clipped():
    env = scene((0.2, 0.2, 0.0), (-0.2, -0.2))
    env.step([0.5, -0.25])
    assert env.pusher_pos == pytest.approx((-0.15, -0.225), abs=1e-12)
    env.step([7, -0.5])
    assert env.pusher_pos == pytest.approx((-0.05, -0.275), abs=1e-12)


def chase(env, rng):
    """Rough handling: at the block, across it, and away again."""
    (x, y, _), (px, py) = env.tee_pose, env.pusher_pos
    return 8 * np.array([x - px, y - py]) + rng.normal(0, 0.4, 2)


def rough_trajectory(seed, actions=60):
    env, rng = PushTEnv(), np.random.default_rng(seed)
    blob = [env.reset(seed).tobytes()]
    for _ in range(actions):
        obs, reward, done, info = env.step(chase(env, rng))
        blob += [obs.tobytes(), np.float64(reward).tobytes(), pickle.dumps(sorted(info.items()))]
        if done:
            break
    return b"".join(blob), env


def test_same_seed_and_actions_same_bytes():
    for seed in range(4):
        np.random.seed(seed)  # the global generator has no say
        first, env = rough_trajectory(seed)
        np.random.seed(99)
        second, again = rough_trajectory(seed)
        assert first == second
        assert env.render_frame(64, 64).tobytes() == again.render_frame(64, 64).tobytes()
        assert pickle.dumps(env.masks(64, 64)) == pickle.dumps(again.masks(64, 64))
        used, rng = PushTEnv(), np.random.default_rng(seed)  # an environment that was used before
        used.reset(seed + 1)
        used.step([1, 1])
        assert used.reset(seed).tobytes() == first[:40]
        assert used.step(chase(used, rng))[0].tobytes() == first[40:80]
    assert rough_trajectory(0)[0] != rough_trajectory(4)[0]


def test_golden_trajectory():
    """The trajectory we published figures for. It may only change on purpose."""
    env, rng = PushTEnv(), np.random.Generator(np.random.PCG64(7))
    observations = [env.reset(3)]
    for _ in range(80):
        (x, y, _), (px, py) = env.tee_pose, env.pusher_pos
        wobble = rng.uniform(-0.5, 0.5, size=2)
        observations.append(env.step([6 * (x - px) + wobble[0], 6 * (y - py) + wobble[1]])[0])
    moved = np.abs(observations[-1] - observations[0])[2:6]
    assert moved.max() > 0.1  # the block was pushed about, so physics is in the hash
    assert hashlib.sha256(np.stack(observations).tobytes()).hexdigest()[:16] == "9290b72903011b12"


# ---- success and reward ----


def test_success_takes_five_steps_in_a_row_and_pays_once():
    env = scene((0.029, 0.0, -0.19), (0.3, 0.3))
    rewards = []
    for k in range(5):
        _, reward, done, info = env.step([0, 0])
        rewards.append(reward)
        assert done == info["success"] == (k == 4)
        assert info["pos_err"] == pytest.approx(0.029) and info["ang_err"] == pytest.approx(0.19)
    base = -0.5 * (0.029 / 0.5 + 0.19 / math.pi)
    assert rewards == pytest.approx([base] * 4 + [base + 1])
    with pytest.raises(RuntimeError, match="over"):
        env.step([0, 0])


def test_a_broken_streak_starts_again():
    env = scene((0.0, 0.0, 0.0), (0.3, 0.3))
    for _ in range(4):
        env.step([0, 0])
    env._place(0.05, COM_Y, 0.0)
    env.step([0, 0])
    env._place(0.0, COM_Y, 0.0)
    assert [env.step([0, 0])[2] for _ in range(5)] == [False] * 4 + [True]


@pytest.mark.parametrize("pose", [(0.031, 0, 0), (0, -0.031, 0), (0, 0, 0.21), (0, 0, -0.21), (0, 0, 3.1415)])
def test_outside_either_tolerance_is_no_success_and_300_steps_are_the_end(pose):
    env = scene(pose, (0.3, 0.3))
    done = [env.step([0, 0])[2:] for _ in range(300)]
    assert [d for d, _ in done] == [False] * 299 + [True]
    assert not any(info["success"] for _, info in done)
    with pytest.raises(RuntimeError, match="over"):
        env.step([0, 0])
    env.reset(1)
    env.step([0, 0])


def random_poses(count):
    """Three in four near the target, where the two overlap; the others anywhere."""
    rng = np.random.default_rng(0)
    reach = np.where(np.arange(count) % 4 > 0, 0.1, 0.3)
    yield from zip(*(rng.uniform(-reach, reach) for _ in range(2)), rng.uniform(-math.pi, math.pi, count))


def test_coverage_is_the_exact_area_in_common():
    special = [(0.0, 0.0, 0.0), (0.0, 0.0, -math.pi), (0.12, 0.0, 0.0), (0.03, -0.045, math.pi / 2)]
    found = np.array([(coverage(*pose), tee_at(*pose).intersection(TEE).area / TEE.area) for pose in (*special, *random_poses(10_000))])
    assert np.abs(found[:, 0] - found[:, 1]).max() < 1e-12
    assert ((found[:, 1] > 0.01) & (found[:, 1] < 0.99)).sum() > 5000  # real overlaps, not only nothing and everything
    assert coverage(0, 0, 0) == 1.0


# ---- physics ----

pushes = st.lists(
    st.tuples(
        st.sampled_from(["free", "chase", "corner"]), st.floats(-1, 1), st.floats(-1, 1), st.integers(1, 12)
    ),
    min_size=4,
    max_size=20,
)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), pushes, st.sampled_from([10, 13]))
@example(1, [("corner", 1.0, 1.0, 40)] * 5, 10)
@example(2, [("corner", -1.0, 0.0, 40), ("corner", -1.0, 0.9, 40), ("chase", 1.0, -1.0, 40)], 10)
@example(3, [("chase", 0.0, 0.0, 60), ("free", 1.0, -1.0, 20), ("chase", 0.0, 0.0, 60)], 10)
def test_no_action_sequence_breaks_the_world(seed, plan, substeps):
    """Never an overlap beyond 1e-6 m, never through a wall, never a NaN, and the block moves only if
    touched. "corner" drives the block into a corner or wall and squeezes it there."""
    env = PushTEnv(substeps)
    env.reset(seed)
    for kind, ax, ay, hold in plan:
        for _ in range(hold):
            before, reach = env.tee_pose, gap(env)
            block, pusher = np.array(before[:2]), np.array(env.pusher_pos)
            toward = (block - pusher) / (np.linalg.norm(block - pusher) + 1e-9)
            action = np.array([ax, ay])
            if kind == "chase":
                action = toward + 0.3 * action
            elif kind == "corner":
                action = toward + 4 * (0.4 * action - block)
            obs, reward, done, info = env.step(action)
            assert np.isfinite(obs).all() and all(map(math.isfinite, (reward, *info.values())))
            assert gap(env) > -1e-6
            assert np.abs(tee_at(*env.tee_pose).exterior.coords).max() < WALL + 1e-9
            assert np.abs(env.pusher_pos).max() + PUSHER_RADIUS < WALL + 1e-9
            assert -math.pi <= env.tee_pose[2] < math.pi and 0.0 <= info["coverage"] <= 1.0
            if reach > np.linalg.norm(np.clip(action, -1, 1)) * CONTROL_DT + 1e-9:
                assert env.tee_pose == before
            if done:
                env.reset(seed + 1)


SIDES = [  # a point of the outline, the way into the block, how far to shift it along the side at most
    ((0.0, 0.015), (0, -1), 0.05),
    ((0.0, -0.105), (0, 1), 0.012),
    ((0.06, COM_Y + 0.03), (-1, 0), 0.01),
    ((-0.015, COM_Y - 0.035), (1, 0), 0.015),
]


@pytest.mark.parametrize("point, way", [((0.0, 0.015), (0, -1)), ((0.0, -0.105), (0, 1))])
@pytest.mark.parametrize("yaw", [0.0, 0.7, -2.5])
def test_push_along_the_symmetry_axis_does_not_turn(point, way, yaw):
    env, ahead = touching((0.0, 0.02, yaw), *point, *way)
    start = np.array(env.tee_pose)
    for _ in range(10):
        env.step(0.1 * ahead)
    assert env.tee_pose[2] == pytest.approx(yaw, abs=0.0 if yaw == 0.0 else 1e-9)
    np.testing.assert_allclose(np.array(env.tee_pose[:2]) - start[:2], 0.1 * ahead, atol=2e-7)


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([SIDES[0], SIDES[1]]), st.floats(0.1, 1.0), st.sampled_from([-1, 1]), st.floats(-3, 3))
def test_push_left_of_the_centre_of_mass_turns_clockwise(side, share, hand, yaw):
    (x, y), (nx, ny), most = side
    left = np.array([-ny, nx])  # of someone who pushes
    x, y = np.array([x, y]) + hand * share * most * left
    env, ahead = touching((0.0, 0.0, yaw), x, y, nx, ny)
    env.step(0.1 * ahead)
    turned = wrap(env.tee_pose[2] - yaw)
    assert -hand * turned > 1e-3 * share


@pytest.mark.parametrize("point, way, most", SIDES)
@pytest.mark.parametrize("shift", [-1.0, -0.4, 0.0, 0.7])
@pytest.mark.parametrize("lean", [-0.15, 0.0, 0.15])
def test_a_sticking_push_gives_the_twist_of_the_limit_surface(point, way, most, shift, lean):
    """Force f at r moves the block by v = f, omega = (r x f) / c^2, hence the contact by K f. Push along
    K f for an f inside the friction cone: the contact must stick, and the block must move like that. The
    pusher does not turn, so the turning block rolls along it, by radius times angle."""
    n = np.array(way, float)
    t = np.array([-n[1], n[0]])
    x, y = np.array(point) + shift * most * t
    r = np.array([x, y - COM_Y])
    f = n + lean * t
    omega = (r[0] * f[1] - r[1] * f[0]) / C2
    u = f + omega * np.array([-r[1], r[0]])
    f, omega = f / np.linalg.norm(u), omega / np.linalg.norm(u)
    env, _ = touching((0.0, 0.0, 0.0), x, y, *n)
    com, contact = centre_of_mass(env.tee_pose), in_block_frame(env)
    env.step(0.01 * u / np.linalg.norm(u))  # one millimetre
    np.testing.assert_allclose(centre_of_mass(env.tee_pose) - com, 0.001 * f, atol=2e-5)
    assert env.tee_pose[2] == pytest.approx(0.001 * omega, abs=6e-4)
    rolled = env.tee_pose[2] * PUSHER_RADIUS * t
    np.testing.assert_allclose(in_block_frame(env), contact + rolled, atol=1e-5)


@pytest.mark.parametrize("share, slides", [(0.9, False), (1.1, True)])
def test_contact_sticks_up_to_the_friction_cone_and_slides_beyond(share, slides):
    """Above the centre of mass K has no cross term, so the contact sticks up to slip = MU K_tt depth."""
    env, _ = touching((0.0, 0.0, 0.0), 0.0, 0.015, 0.0, -1.0)
    ktt = 1 + (0.015 - COM_Y) ** 2 / C2
    contact = in_block_frame(env)
    env.step([0.01 * share * MU * ktt, -0.01])
    rolled = env.tee_pose[2] * PUSHER_RADIUS
    assert (abs(in_block_frame(env) - contact - [rolled, 0.0])[0] > 3e-5) == slides


def test_touching_lightly_in_passing_drags_nothing_from_before_the_touch():
    """The way through air is no slip: a straight push into the block from far does what one from near does."""
    near, ahead = touching((0, 0, 0), 0.03, 0.015, 0, -1, air=0.0)
    far, _ = touching((0, 0, 0), 0.03, 0.015, 0, -1, air=0.0095)
    near.step([0.01, -0.02])
    far._px -= 0.00475
    far.step([0.0575, -0.115])
    np.testing.assert_allclose(near.tee_pose, far.tee_pose, atol=1e-4)


def test_doubling_the_substeps_changes_little():
    ends = []
    for substeps in (10, 20, 40):
        env, ahead = touching((0.1, -0.05, 0.4), 0.03, 0.015, 0, -1, air=0.01, substeps=substeps)
        for _ in range(12):
            env.step(0.2 * ahead)
        ends.append(np.array(env.tee_pose))
    assert abs(ends[0][2] - 0.4) > 0.5  # a real push
    coarse, fine = np.abs(ends[1] - ends[0]), np.abs(ends[2] - ends[1])
    assert coarse[:2].max() < 2e-3 and coarse[2] < 0.03
    assert fine.max() < coarse.max()


def test_a_block_at_the_wall_stops_and_the_pusher_yields():
    env, ahead = touching((0.2513, 0.0, math.pi / 2), 0.0, 0.015, 0, -1)  # the stem points to the right wall
    for _ in range(20):
        env.step(0.3 * ahead)
        assert np.abs(tee_at(*env.tee_pose).exterior.coords).max() <= WALL + 1e-9
    assert tee_at(*env.tee_pose).bounds[2] == pytest.approx(WALL, abs=1e-6)
    assert gap(env) == pytest.approx(0.0, abs=1e-6)
    env.step(-0.3 * ahead)
    assert gap(env) == pytest.approx(0.03, abs=1e-3)


def test_a_pusher_in_a_wedge_between_block_and_wall_is_jammed_and_comes_free():
    env = scene((-0.004, 0.339, -1.159), (0.01, 0.384))
    before = env.tee_pose, env.pusher_pos
    env.step([-1.0, 0.6])
    assert (env.tee_pose, env.pusher_pos) == before and 0 < gap(env) < 1e-3
    env.step([0.5, 0.0])
    assert env.pusher_pos[0] == pytest.approx(0.06)


@pytest.mark.parametrize("wall", range(4))
def test_a_wall_turns_a_block_that_meets_it_with_a_corner(wall):
    """Force f along the wall's normal n at corner r: the block moves by f n and turns by (r x n) f / c^2."""
    yaw, n = wall * math.pi / 2 + 0.4, np.array([(-1, 0), (0, -1), (1, 0), (0, 1)][wall], float)
    corners = np.array(tee_at(0.0, 0.0, yaw).exterior.coords)
    first = corners[(corners @ n).argmin()]
    env = scene((*-n * (WALL + 1e-5 + first @ n), yaw), (0.0, 0.0))  # a hundredth of a millimetre too far
    com, r = centre_of_mass(env.tee_pose), first - centre_of_mass((0.0, 0.0, yaw))
    lever = r[0] * n[1] - r[1] * n[0]
    assert abs(lever) > 0.02 and env._keep_block_inside()
    f = 1e-5 / (1 + lever**2 / C2)
    np.testing.assert_allclose(centre_of_mass(env.tee_pose) - com, f * n, atol=1e-7)
    assert wrap(env.tee_pose[2] - yaw) == pytest.approx(f * lever / C2, rel=0.01)


# ---- errors ----


def state(env):
    return copy.deepcopy(env.__dict__)


BAD_ACTIONS = [[math.nan, 0], [0, math.inf], [-math.inf, 0], [0.1], [0.1, 0.2, 0.3], 0.5, [[0.1, 0.2]], None,
               "ab", ["a", "b"], ["0.1", "0.2"], [1j, 0], [None, 0], [[1], [1, 2]], {}, [True, False]]  # fmt: skip


@pytest.mark.parametrize("action", BAD_ACTIONS, ids=repr)
def test_bad_action_is_refused_and_changes_nothing(action):
    env = PushTEnv()
    env.reset(2)
    env.step([0.1, 0.1])
    before = state(env)
    with pytest.raises(ValueError) as error:
        env.step(action)
    assert "two finite numbers" in str(error.value) and repr(action) in str(error.value)
    assert state(env) == before


@pytest.mark.parametrize("size", [(0, 64), (64, 0), (-1, 64), (64, 2.5), ("a", 64), (64, None), (64, 2049)])
@pytest.mark.parametrize("method", ["render_frame", "masks"])
def test_bad_image_size(method, size):
    env = PushTEnv()
    env.reset(2)
    before = state(env)
    with pytest.raises(ValueError) as error:
        getattr(env, method)(*size)
    bad = next(v for v in size if v != 64)
    assert repr(bad) in str(error.value) and "from 1 to 2048" in str(error.value)
    assert ("height" if size[0] != 64 else "width") in str(error.value)
    assert state(env) == before


@pytest.mark.parametrize("seed", [-1, 1.5, "0", None, [1]], ids=repr)
def test_bad_seed_is_refused_and_the_episode_goes_on(seed):
    env = PushTEnv()
    env.reset(2)
    before = state(env)
    with pytest.raises(ValueError, match="seed must be a whole number >= 0, got"):
        env.reset(seed)
    assert state(env) == before


@pytest.mark.parametrize("substeps", [0, 9, 1001, 10.0])
def test_bad_substeps(substeps):
    with pytest.raises(ValueError, match="substeps must be a whole number from 10 to 1000, got"):
        PushTEnv(substeps)


def test_nothing_works_before_reset():
    env = PushTEnv()
    uses = {
        "step": lambda: env.step([0, 0]),
        "render_frame": lambda: env.render_frame(64, 64),
        "masks": lambda: env.masks(64, 64),
        "tee_pose": lambda: env.tee_pose,
        "pusher_pos": lambda: env.pusher_pos,
        "steps": lambda: env.steps,
    }
    for name, use in uses.items():
        with pytest.raises(RuntimeError, match=f"{name}: no episode yet; call reset"):
            use()


def test_a_step_after_the_end_changes_nothing():
    env = scene((0.0, 0.0, 0.0), (0.3, 0.3))
    while not env.step([0, 0])[2]:
        pass
    before = state(env)
    with pytest.raises(RuntimeError, match="the episode is over; call reset"):
        env.step([0.5, 0])
    assert state(env) == before


# ---- pictures ----


def centres(height, width):
    """World x and y of the pixels' centres, as the docstring has it."""
    pixel = 2 * pusht_env.HALF_EXTENT / min(height, width)
    x = (np.arange(width) + 0.5 - width / 2) * pixel
    y = (height / 2 - np.arange(height) - 0.5) * pixel
    return np.meshgrid(x, y)


@settings(max_examples=40, deadline=None)
@given(poses, st.sampled_from([(64, 64), (32, 64), (100, 48), (1, 1), (7, 200)]))
def test_masks_are_the_pixels_whose_centre_is_on_the_object(pose, size):
    env = scene(pose, (0.05, -0.31))
    masks = env.masks(*size)
    x, y = centres(*size)
    assert set(masks) == {"block", "pusher", "target"}
    assert all(m.shape == size and m.dtype == bool for m in masks.values())
    for name, shape in (("block", tee_at(*pose)), ("target", TEE)):
        sure = ~contains_xy(shape.exterior.buffer(1e-9), x, y)  # not on the very edge
        np.testing.assert_array_equal(masks[name][sure], contains_xy(shape, x, y)[sure])
    np.testing.assert_array_equal(masks["pusher"], np.hypot(x - 0.05, y + 0.31) < PUSHER_RADIUS)


def bare_table(size):
    """The frame without block and pusher."""
    env = PushTEnv()
    env.reset(0)
    return env._static("", size, size)[0].astype(float)


@settings(max_examples=25, deadline=None)
@given(poses, st.tuples(st.floats(-0.38, 0.38), st.floats(-0.38, 0.38)), st.sampled_from([32, 50, 64]))
def test_frames_are_smooth_by_signed_distance_and_agree_with_the_masks(pose, pusher, size):
    """Every pixel: table, then block, then pusher, each covering clip(0.5 - distance / pixel, 0, 1) of it."""
    env = scene(pose, pusher)
    frame, masks, expected = env.render_frame(size, size), env.masks(size, size), bare_table(size)
    x, y = centres(size, size)
    pixel = 2 * pusht_env.HALF_EXTENT / size
    tee = tee_at(*pose)
    block = shapely.distance(tee.exterior, shapely.points(x, y)) * np.where(contains_xy(tee, x, y), -1, 1)
    rim = np.hypot(x - pusher[0], y - pusher[1]) - PUSHER_RADIUS
    for name, distance, rgb in (("block", block, pusht_env.BLOCK_RGB), ("pusher", rim, pusht_env.PUSHER_RGB)):
        alpha = np.clip(0.5 - distance / pixel, 0, 1)
        expected += alpha[..., None] * (rgb - expected)
        sure = np.abs(alpha - 0.5) > 1e-6
        np.testing.assert_array_equal(masks[name][sure], alpha[sure] > 0.5)
    inner = [tee.exterior.coords[3], tee.exterior.coords[6]]  # where the distance is not exact
    exact = np.min([np.hypot(x - u, y - v) for u, v in inner], axis=0) > 0.75 * pixel
    assert np.abs(frame - expected)[exact].max() <= 1.01


def test_up_is_up_and_right_is_right():
    env = scene((-0.2, -0.2, 0.0), (0.3, 0.25))
    rows, cols = np.nonzero(env.masks(64, 64)["pusher"])
    assert rows.mean() + 0.5 == pytest.approx(32 - 0.25 / PIXEL, abs=0.5)
    assert cols.mean() + 0.5 == pytest.approx(32 + 0.30 / PIXEL, abs=0.5)
    rows, cols = np.nonzero(env.masks(64, 64)["block"])
    assert rows.mean() > 32 and cols.mean() < 32
    upright = env.masks(256, 256)["target"]
    assert upright.sum(1).argmax() < np.nonzero(upright)[0].mean()  # the bar lies above the stem


def test_the_scene_is_painted_in_its_tones(monkeypatch):
    monkeypatch.setattr(pusht_env, "HALF_EXTENT", 0.44)  # so that what lies beyond the walls is in the picture
    env = scene((-0.2, 0.2, 0.5), (0.3, 0.25))
    frame = env.render_frame(880, 880)  # one pixel is one millimetre

    def at(x, y):
        return tuple(int(v) for v in frame[int(440 - 1000 * y), int(440 + 1000 * x)])

    first = -0.45 + 0.05625 * 2.5  # the middle of a square
    tones = {at(first + 0.05625 * i, first + 0.05625 * j) for i in range(3) for j in range(3) if (i + j) % 2 == 0}
    assert tones == {(220,) * 3}
    assert at(first + 0.05625, first) == at(first, first + 0.05625) == (160,) * 3
    assert at(0.41, 0.0) == at(0.0, -0.41) == (153,) * 3
    assert at(-0.435, 0.1) == at(0.2, 0.435) == (0,) * 3
    assert at(0.3, 0.25) == (230, 102, 89) and at(-0.2, 0.2) == (115, 128, 242)
    table = at(0.012 + 2 * 0.05625, -0.05)[0]  # two squares on, the tone under this part of the target
    assert at(0.012, -0.05) == pytest.approx([(table + c) / 2 for c in (89, 204, 102)], abs=0.5)


def test_edges_are_smooth_and_areas_right(monkeypatch):
    monkeypatch.setattr(pusht_env, "TONE_DARK", 242)
    monkeypatch.setattr(pusht_env, "TONE_LIGHT", 242)
    monkeypatch.setattr(pusht_env, "TARGET_OPACITY", 0.0)
    env = scene((0.1, 0.1, 0.6), (-0.2, -0.2))
    frame = env.render_frame(64, 64).astype(float)
    red, green = (242 - frame[..., 0]) / (242 - 115), (242 - frame[..., 1]) / (242 - 102)
    block, pusher = red[8:32, 32:58].sum() * PIXEL**2, green[40:56, 8:28].sum() * PIXEL**2
    assert block == pytest.approx(TEE.area, rel=0.03)
    assert pusher == pytest.approx(math.pi * PUSHER_RADIUS**2, rel=0.1)
    assert ((red[8:32, 32:58] > 0.1) & (red[8:32, 32:58] < 0.9)).sum() > 15


def test_moving_by_a_tenth_of_a_pixel_shows():
    here, there = scene((0.1, 0.1, 0.6), (-0.2, -0.2)), scene((0.1 + PIXEL / 10, 0.1, 0.6), (-0.2, -0.2))
    assert (here.render_frame(64, 64) != there.render_frame(64, 64)).any()


@pytest.mark.parametrize("size", [(1, 1), (3, 200), (200, 3), (64, 96), (2, 2)])
def test_any_size_and_shape(size):
    env = scene((0.3, 0.3, 0.5), (0.38, 0.38))
    frame = env.render_frame(*size)
    assert frame.shape == (*size, 3) and frame.dtype == np.uint8 and frame.flags.c_contiguous


def test_a_wide_picture_shows_more_and_stretches_nothing():
    env = scene((0.1, 0.1, 0.6), (-0.2, -0.2))
    square, wide = env.render_frame(64, 64), env.render_frame(64, 96)
    np.testing.assert_array_equal(wide[:, 16:80], square)


def test_pictures_belong_to_the_caller():
    env = scene((0.1, 0.1, 0.6), (-0.2, -0.2))
    frame, masks = env.render_frame(64, 64), env.masks(64, 64)
    kept = frame.copy(), {k: m.copy() for k, m in masks.items()}
    frame[:] = 0
    for m in masks.values():
        m[:] = True
    np.testing.assert_array_equal(env.render_frame(64, 64), kept[0])
    for name, m in env.masks(64, 64).items():
        np.testing.assert_array_equal(m, kept[1][name])


@pytest.mark.parametrize("name, value", [
    ("HALF_EXTENT", 0.47), ("SQUARE", 0.08), ("TONE_DARK", 100), ("TONE_LIGHT", 250),
    ("WALL_TONE", 99), ("WALL_FROM", 0.35), ("OUTSIDE_TONE", 50), ("OUTSIDE_FROM", 0.42), ("TARGET_RGB", (9, 9, 9)),
    ("TARGET_OPACITY", 1.0), ("BLOCK_RGB", (9, 9, 9)), ("PUSHER_RGB", (9, 9, 9)),
])  # fmt: skip
def test_the_scene_follows_its_constants(monkeypatch, name, value):
    monkeypatch.setattr(pusht_env, "HALF_EXTENT", 0.44)  # so that what lies beyond the walls is in the picture
    env = scene((0.1, 0.1, 0.6), (-0.2, -0.2))
    before = env.render_frame(64, 64)
    with monkeypatch.context() as patch:
        patch.setattr(pusht_env, name, value)
        assert (env.render_frame(64, 64) != before).any()
    np.testing.assert_array_equal(env.render_frame(64, 64), before)


@pytest.mark.parametrize("size, golden", [
    ((64, 64), "7791c09803447c15"), ((48, 80), "dcd84dac58a588a0"), ((224, 224), "c55471d98b96a912"),
])  # fmt: skip
def test_golden_frames(size, golden):
    """Frames and masks we published figures for. They may only change on purpose."""
    env = PushTEnv()
    blob = b""
    for seed in range(8):
        env.reset(seed)
        blob += env.render_frame(*size).tobytes()
        blob += b"".join(mask.tobytes() for _, mask in sorted(env.masks(*size).items()))
    assert hashlib.sha256(blob).hexdigest()[:16] == golden


# ---- the file ----


def test_docstring_example():
    result = doctest.testmod(pusht_env)
    assert result.attempted >= 5 and result.failed == 0


def test_needs_numpy_and_nothing_else():
    code = (
        "import sys; import numpy; before = set(sys.modules); import pusht_env, scripted_expert;"
        "print(sorted({m.split('.')[0] for m in set(sys.modules) - before} - sys.stdlib_module_names))"
    )
    folder = os.path.dirname(os.path.abspath(pusht_env.__file__))
    done = subprocess.run([sys.executable, "-c", code], cwd=folder, capture_output=True, text=True)
    assert done.stdout.strip() == "['pusht_env', 'scripted_expert']", done.stderr
