"""The frames of gym-pusht: what collect_gym_pusht.py promises about places, pictures, labels, motion and its file."""

import cmath
import math
import os

import gymnasium
import numpy as np
import pytest

import collect_gym_pusht as collect
import vit
from pusht_env import COM_Y, MAX_STEPS, coverage
from scripted_expert import LENGTHS, PLANS

LIGHT, EDGE = (143, 163, 184), (119, 136, 153)     # the block as gym-pusht draws it: its inside, and a line around each bar
FAR = complex(20, 20)            # px, a corner of the table: the agent out of the way


@pytest.fixture(scope="module")
def world():
    return collect.GymPushT(64)


@pytest.fixture(scope="module")
def big():
    return collect.GymPushT(collect.TABLE)     # its frames are gym-pusht's drawing, not resized


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("gym") / "two.npz"
    assert collect.main(["--episodes", "2", "--stride", "8", "--seed", "3", "--out", str(path)]) == 0
    return path


def poses(n, reach=0.12):
    """Poses of the block (complex m, yaw) around the goal."""
    rng = np.random.default_rng(5)
    return [(complex(*rng.uniform(-reach, reach, 2)), rng.uniform(-math.pi, math.pi)) for _ in range(n)]


# Places

def our_corners():
    """The T's corners in our frame, one rectangle after the other, as complex metres."""
    return [complex(x + sx * hx, y + sy * hy) for x, y, hx, hy in (collect.BAR, collect.STEM) for sx in (-1, 1) for sy in (-1, 1)]


def test_the_corners_of_both_descriptions_coincide(world):
    for z, yaw in poses(20):
        world.place(z, yaw, FAR)
        assert world.tee[0] == pytest.approx(z, abs=1e-9) and world.tee[1] == pytest.approx(yaw)
        theirs = [world.metres(world.env.block.local_to_world(v)) for shape in world.env._block_shapes for v in shape.get_vertices()]
        ours = [z + c * cmath.rect(1, yaw) for c in our_corners()]
        assert len(theirs) == len(ours) == 8
        for half in (slice(0, 4), slice(4, 8)):            # bar, stem
            assert all(min(abs(a - b) for b in ours[half]) < 1e-9 for a in theirs[half])
            assert all(min(abs(a - b) for b in theirs[half]) < 1e-9 for a in ours[half])


def test_the_expert_sees_the_goal_upright_at_its_origin(world):
    world.place(0, world.goal_yaw, FAR)
    assert world.tee_pose == pytest.approx((0, 0, 0), abs=1e-9)
    assert world.env._get_coverage() == pytest.approx(1)
    assert world.pixels(world.metres((100, 200))) == pytest.approx(complex(100, 200))


def test_our_coverage_of_the_pose_is_gym_pushts_coverage(world):
    seen = []
    for k, (z, yaw) in enumerate(poses(40, reach=0.05)):
        world.place(z * k / 40, world.goal_yaw + yaw * k / 40, FAR)        # from the goal itself to anywhere near
        seen.append(world.env._get_coverage())
        assert coverage(*world.tee_pose) == pytest.approx(seen[-1], abs=1e-6)
    assert min(seen) < 0.3 < 0.7 < sorted(seen)[-4]


def test_agent_and_block_are_turned_alike(world):
    """The agent on the block's axis in the world is on the block's axis for the expert."""
    for z, yaw in poses(5):
        at = z + 0.2j * cmath.rect(1, yaw)                 # above the bar, seen from the block
        world.place(z, yaw, world.pixels(at))
        x, y, turn = world.tee_pose
        assert (complex(*world.pusher_pos) - complex(x, y)) * cmath.rect(1, -turn) == pytest.approx(0.2j, abs=1e-9)


def test_starts_go_round_the_quadrants_with_room_for_the_agent(world):
    for seed in range(40):
        world.start(seed)
        z, _ = world.tee
        assert vit.quadrant(z.real, z.imag) == seed % 4 and 0.0999 < abs(z) < 0.2401 and world.steps == 0
        corners = [world.env.block.local_to_world(v) for shape in world.env._block_shapes for v in shape.get_vertices()]
        assert all(collect.ROOM - 1e-6 < v < collect.TABLE - collect.ROOM + 1e-6 for corner in corners for v in corner)
        assert abs(world.metres(world.env.agent.position) - z) > 0.149
        assert not any(body.velocity.length for body in (world.env.block, world.env.agent))


# Motion

def test_the_agent_goes_where_the_velocity_says(world):
    world.place(0.05 + 0.05j, 0.0, complex(150, 400))
    rng = np.random.default_rng(2)
    for _ in range(12):
        before, velocity = complex(*world.pusher_pos), rng.uniform(-0.2, 0.2, 2)
        world.step(velocity)
        assert complex(*world.pusher_pos) - before == pytest.approx(0.1 * complex(*velocity), abs=1e-9)


def test_the_agents_target_stays_in_the_action_space(world):
    world.place(0.05 + 0.05j, 0.0, complex(150, 480))
    for _ in range(8):
        world.step((-1.0, -1.0))           # to the left: the expert's axes are turned by 45 degrees
    assert world.env._last_action == pytest.approx((0, 480), abs=1e-6) and 0 <= world.env.agent.position.x < 20


def test_a_push_moves_the_block_as_the_expert_plans(world):
    """Pymunk turns the block by the planned angle; with our own physics' constants the plan would be wrong by a third."""
    experts = collect.expert_for(world.env.block)
    plan = experts.PLANS[4].tolist()                       # top of the bar, beside the centre
    x, y, nx, ny, ux, uy, vx, vy, omega = plan
    touching = complex(x - 0.015 * nx, y - 0.015 * ny)
    world.place(0, world.goal_yaw, world.pixels(touching * cmath.rect(1, world.goal_yaw)))
    for _ in range(5):
        world.step((0.02 * ux, 0.02 * uy))                 # 10 mm
    px, py, turn = world.tee_pose
    assert abs(omega) > 5 and turn == pytest.approx(0.01 * omega, rel=0.1)
    assert not turn == pytest.approx(0.01 * PLANS[13, 8], rel=0.1)     # the same contact, straight, in our own table


def test_the_expert_of_our_own_environment_is_left_as_it_was(world):
    import scripted_expert

    experts = collect.expert_for(world.env.block)
    assert experts is not scripted_expert and scripted_expert.PLANS is PLANS and scripted_expert.LENGTHS is LENGTHS
    assert scripted_expert.COM_Y == COM_Y and scripted_expert.POS_TOL == 0.03
    assert experts.COM_Y == pytest.approx(-0.030) and experts.C2 == pytest.approx(0.003) and len(experts.PLANS) == len(experts.CONTACTS) == 17
    assert all(shape.friction == 0 for shape in world.env.space.shapes)


# Pictures

def block_pixels(frame, *colours):
    return np.any([(frame == colour).all(axis=2) for colour in colours], axis=0)


def test_a_frame_is_the_observation_that_a_policy_gets():
    assert gymnasium.spec("gym_pusht/PushT-v0").max_episode_steps == MAX_STEPS
    for size in (64, 96):
        ours = collect.GymPushT(size)
        theirs = gymnasium.make("gym_pusht/PushT-v0", obs_type="pixels", observation_width=size, observation_height=size)
        ours.env.reset(seed=4)
        seen, _ = theirs.reset(seed=4)
        assert np.array_equal(ours.frame(), seen)
        for action in ([100.0, 150.0], [300.0, 300.0]):
            ours.env.step(np.array(action))
            seen = theirs.step(np.array(action, np.float32))[0]
        frame = ours.frame()
        assert np.array_equal(frame, seen) and frame.shape == (size, size, 3) and frame.dtype == np.uint8
        assert not ((frame[..., 0] > 200) & (frame[..., 1:] < 100).all(axis=2)).any()      # no red cross: that is the human's picture


def test_the_mask_is_where_the_block_was_drawn(big):
    """gym-pusht rounds the corners to whole pixels, and its line around a bar reaches 2 px beyond it, 4 at a corner."""
    for z, yaw in poses(4):
        big.place(z, yaw, FAR)
        mask, frame = big.mask(), big.frame()
        drawn = block_pixels(frame, LIGHT, EDGE)
        assert mask.sum() == pytest.approx(6300, rel=0.02)                 # 120 x 30 + 30 x 90
        assert (mask & ~drawn).sum() < 0.002 * mask.sum() and not (block_pixels(frame, LIGHT) & ~mask).any()
        grown = np.any([np.roll(mask, (i, j), (0, 1)) for i in range(-4, 5) for j in range(-4, 5)], axis=0)
        assert not (drawn & ~grown).any()                                  # what is drawn beside it is the line


@pytest.mark.parametrize("size", [64, 96])
def test_the_mask_agrees_with_the_small_picture(size):
    world, shifts, wrong, area = collect.GymPushT(size), [], 0, 0
    for z, yaw in poses(20):
        world.place(z, yaw, FAR)
        frame, mask = world.frame().astype(int), world.mask()
        blue = frame[..., 2] - frame[..., 0]                               # of the inside 41, of the line 34, of the agent 160
        drawn = (blue > 20) & (blue < 60)
        drawn[: size // 8, : size // 8] = False                            # the agent's own edge
        assert drawn[mask].mean() > 0.97
        shifts.append(np.argwhere(drawn).mean(axis=0) - np.argwhere(mask).mean(axis=0))
        wrong, area = wrong + (drawn & ~mask).sum(), area + mask.sum()
    assert np.abs(np.mean(shifts, axis=0)).max() < 0.25                    # pixels: no shift
    assert wrong < 0.25 * area                                             # the line again: 700 to 1200 of 6300 px of the table


def test_the_label_is_what_the_picture_shows(big):
    """The block moved from the goal by d, not turned, is drawn where it was, moved by d: x right, y up."""
    def middle():
        rows, columns = np.nonzero(block_pixels(big.frame(), LIGHT, EDGE))
        return complex(columns.mean(), -rows.mean())

    big.place(0, big.goal_yaw, FAR)
    home = middle()
    for quadrant, z in enumerate((0.1 + 0.04j, -0.1 + 0.05j, -0.03 - 0.1j, 0.05 - 0.09j)):
        big.place(z, big.goal_yaw, FAR)
        assert 1e-3 * (middle() - home) == pytest.approx(z, abs=0.002)
        assert vit.quadrant(big.tee[0].real, big.tee[0].imag) == quadrant


# The file

def test_vit_accepts_the_file(file):
    with np.load(file) as data:
        held = {key: data[key] for key in data.files}
    n = len(held["frames"])
    assert held["frames"].shape == (n, 64, 64, 3) and held["masks_block"].shape == (n, 64, 64) and 8 <= n < 2 * 300 / 8
    frames = vit.foreign_frames(file)
    assert frames.episodes.tolist() == sorted(frames.episodes) and set(frames.episodes) == {0, 1} and frames.masks["block"].any(axis=(1, 2)).all()
    for e in (0, 1):                                       # episode seeds are 6 and 7; both are played to their end
        mine = held["tee_xy"][held["episode"] == e]
        assert frames.labels[held["episode"] == e][0] == (6 + e) % 4
        assert np.hypot(*mine[0]) > 0.09 and np.hypot(*mine[-1]) < 0.08 and len(np.unique(mine, axis=0)) > 3


def test_label_mask_and_frame_belong_together(file):
    """The middle of the mask is the block's centroid, 0.0257 m from the bar's centre that the label counts from."""
    world, data = collect.GymPushT(64), np.load(file)
    for frame, (x, y), mask in zip(data["frames"].astype(int), data["tee_xy"], data["masks_block"]):
        row, column = np.argwhere(mask).mean(axis=0) * 8 + 3.5             # of the pixel's centre, px of the table
        assert abs(world.metres((column, row)) - complex(x, y)) == pytest.approx(-COM_Y, abs=0.006)
        blue = frame[mask][:, 2] - frame[mask][:, 0]
        assert ((blue > 20) & (blue < 60)).mean() > 0.9                    # the agent may hide some


def test_the_same_command_gives_the_same_bytes(file, tmp_path, capsys):
    for name, seed in (("again.npz", 3), ("other.npz", 4)):
        assert collect.main(["--episodes", "2", "--stride", "8", "--seed", str(seed), "--out", str(tmp_path / name)]) == 0
    assert (tmp_path / "again.npz").read_bytes() == file.read_bytes() != (tmp_path / "other.npz").read_bytes()
    out = capsys.readouterr().out.splitlines()
    assert out[0].startswith("2 episodes, ") and out[1] == "coverage 0.95 within 300 steps: 2 of 2" and ": 0 of 2; " in out[2]
    assert sorted(os.listdir(tmp_path)) == ["again.npz", "other.npz"]      # no .part is left


def test_a_failure_leaves_the_old_file(tmp_path, monkeypatch, capsys):
    old = tmp_path / "old.npz"
    old.write_bytes(b"old")

    def fails(*args, **kwargs):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(collect.np, "savez_compressed", fails)
    monkeypatch.setattr(collect, "collect", lambda *args: ({}, []))
    with pytest.raises(SystemExit) as stop:
        collect.main(["--out", str(old)])
    assert stop.value.code == 2 and "No space left" in capsys.readouterr().err
    assert old.read_bytes() == b"old" and os.listdir(tmp_path) == ["old.npz"]


@pytest.mark.parametrize("flags, told", [
    (["--seed", "-1"], "--seed: -1"), (["--episodes", "1"], "2 to 2000"), (["--stride", "0"], "--stride"), (["--stride", "x"], "--stride"),
    (["--size", "60"], "a multiple of 8"), (["--size", "136"], "32 to 128"), (["--nonsense"], "--nonsense"),
    (["--out", "."], "is a folder"), (["--out", ""], "is a folder"), (["--out", "missing/f.npz"], "No such file"),
    (["--out", __file__ + "/f.npz"], "Not a directory"), (None, "--out"),
])
def test_bad_input_costs_one_line_and_status_2(tmp_path, monkeypatch, capsys, flags, told):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(SystemExit) as stop:
        collect.main([] if flags is None else ["--out", "f.npz", *flags])
    err = capsys.readouterr().err
    assert stop.value.code == 2 and err.count("\n") == 1 and told in err and os.listdir(tmp_path) == []


@pytest.mark.slow
@pytest.mark.parametrize("size", [64, 96])
def test_vit_runs_on_the_frames(tmp_path, capsys, size):
    file = tmp_path / "gym.npz"
    assert collect.main(["--episodes", "8", "--stride", "8", "--size", str(size), "--out", str(file)]) == 0
    assert vit.main(["--smoke", "--frames", str(file), "--out", str(tmp_path / "o")]) == 0
    out = capsys.readouterr().out
    assert "Written: " in out and (tmp_path / "o" / "viewer.html").stat().st_size > 10_000 and f"frames of {size} x {size}" in out


@pytest.mark.slow
def test_forty_episodes_of_a_seed():
    data, report = collect.collect(seed=2, episodes=40, stride=4, size=32)
    print(*report, sep="\n")
    assert 650 <= len(data["frames"]) <= 900 and "0 of 40" in report[2]
    assert int(report[1].split(": ")[1].split()[0]) >= 36
    share = np.bincount(vit.quadrant(*data["tee_xy"].T), minlength=4) / len(data["frames"])
    assert 0.15 < share.min() and share.max() < 0.35
