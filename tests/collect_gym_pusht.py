"""Frames that we did not draw: gym-pusht's own physics (pymunk) and drawing (pygame), played by our scripted expert.

    python tests/collect_gym_pusht.py --seed 0 --out gym.npz
    python vit.py --frames gym.npz

gym-pusht's table is 512 px wide, 1 px taken as 1 mm, y down, the goal at (256, 256) turned by 45 degrees, and an action
is the place where a PD controller shall take the agent.  GymPushT shows the expert the table that it knows: metres, y
up, the goal upright at the origin, and velocities.  The labels in the file are in picture axes, not turned.

An episode is like one of our own data sets': it starts in quadrant `seed % 4` of the goal, the expert's actions carry
noise, and frames are kept until the block lies within PushTEnv's tolerances (HOLD_STEPS in a row).  Then the expert goes
on without noise to gym-pusht's own success, 0.95 coverage; that is reported, not kept: there the block lies some
millimetres from the goal, and the picture, 8 mm a pixel, could not tell its quadrant.
"""

import argparse
import cmath
import importlib.util
import math
import os
import sys
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))
import vit  # noqa: E402
from pusht_env import ANG_TOL, BAR, CONTROL_DT, HOLD_STEPS, MAX_STEPS, POS_TOL, STEM, tee_distance, wrap  # noqa: E402

TABLE = 512              # px, gym-pusht's table and the range of its actions
BAR_CENTRE = 0.0, 15.0   # px, in gym-pusht's body frame, whose origin is the middle of the bar's upper edge: our T's origin
ROOM = 30.0              # px, between the block and the edge of the table at the start, for the agent: its diameter
NOISE = 0.08             # m/s, as in vit.cache_frames
NUMBERS = {  # flag: smallest, largest, step, default, help
    "seed": (0, 10**6, 1, 0, "another seed, other episodes: no two seeds share one"),
    "episodes": (2, 2000, 1, 40, "episodes to play"),
    "stride": (1, MAX_STEPS, 1, 4, "keep every n-th frame of an episode"),
    "size": (32, 128, 8, 64, "width and height of a frame in pixels"),
}


class GymPushT:
    """gym-pusht as ScriptedExpert knows PushTEnv: `tee_pose`, `pusher_pos`, `steps`, in metres, the goal upright at the origin.

    start(seed) begins an episode, step(velocity) moves the agent, frame() and mask() are what a policy sees and where the block is.
    """

    def __init__(self, size):
        """size: width and height of a frame in pixels."""
        import gym_pusht  # noqa: F401
        import gymnasium

        self.env = gymnasium.make("gym_pusht/PushT-v0", observation_width=size, observation_height=size).unwrapped
        self.size = size
        self.env.reset()
        goal = self.env.get_goal_pose_body(self.env.goal_pose)
        self.origin = complex(*goal.local_to_world(BAR_CENTRE))     # px: the goal's bar, centre
        self.goal_yaw = -goal.angle                                # y down: gym-pusht's angles run clockwise
        # Control period of the PD controller as gym-pusht steps it: v += (k_p (target - x) - k_v v) dt, then x += v dt.
        kp, kv, dt = self.env.k_p, self.env.k_v, self.env.dt
        substep = np.array([[1 - kp * dt * dt, dt - kv * dt * dt], [-kp * dt, 1 - kv * dt]])      # of (x - target, v)
        (stays, self.coasts), _ = np.linalg.matrix_power(substep, round(1 / (dt * self.env.control_hz)))
        self.reaches = 1 - stays           # the share of the way to the target that an agent at rest makes

    def start(self, seed):
        """Start the episode of this seed, a whole number >= 0."""
        rng = np.random.Generator(np.random.PCG64(seed))
        while True:                        # 0.10 to 0.24 m as in PushTEnv, as far as this smaller table has room
            z = cmath.rect(rng.uniform(0.10, 0.24), (seed % 4 + rng.uniform(0, 1)) * math.pi / 2)
            yaw = rng.uniform(-math.pi, math.pi)
            corners = [self.pixels(z + complex(x + sx * hx, y + sy * hy) * cmath.rect(1, yaw))
                       for x, y, hx, hy in (BAR, STEM) for sx in (-1, 1) for sy in (-1, 1)]
            if all(ROOM < v < TABLE - ROOM for c in corners for v in (c.real, c.imag)):
                break
        while True:
            agent = complex(*rng.uniform(ROOM, TABLE - ROOM, size=2))
            if abs(agent - self.pixels(z)) > 150:
                break
        self.place(z, yaw, agent)

    def place(self, z, yaw, agent):
        """Put the block's bar at z (m, picture axes), turned by yaw, and the agent at `agent` (px)."""
        # reset_to_state sets the position of the body's origin at angle 0, then turns the body about its centre of gravity.
        turn = cmath.rect(1, -yaw)
        bar, centre = complex(*BAR_CENTRE), complex(*self.env.block.center_of_gravity)
        at = self.pixels(z) + (centre - bar) * turn - centre
        self.env.reset(options={"reset_to_state": [agent.real, agent.imag, at.real, at.imag, -yaw]})
        self.steps = 0

    def step(self, velocity):
        """Move the agent with `velocity` (m/s, the expert's axes) for one control period -> gym-pusht's coverage, 0 to 1."""
        # The target is such that the agent has gone velocity * CONTROL_DT at the end, whatever its velocity is now.
        vx, vy = velocity
        way = complex(vx, vy) * cmath.rect(1000 * CONTROL_DT, self.goal_yaw)
        at, now = complex(*self.env.agent.position), complex(*self.env.agent.velocity)
        target = at + (way.conjugate() - self.coasts * now) / self.reaches
        *_, info = self.env.step(np.clip([target.real, target.imag], 0, TABLE))     # its action space
        self.steps += 1
        return info["coverage"]

    def metres(self, point):
        """A point of the table (px) -> complex, metres from the goal's bar, picture axes: x right, y up."""
        return (complex(*point) - self.origin).conjugate() / 1000

    def pixels(self, z):
        """The way back: complex metres -> complex px."""
        return self.origin + 1000 * z.conjugate()

    @property
    def tee(self):
        """The block in picture axes: position of its bar's centre (complex, m) and yaw."""
        return self.metres(self.env.block.local_to_world(BAR_CENTRE)), -self.env.block.angle

    @property
    def tee_pose(self):
        """(x, y, yaw) of the block in the expert's axes: the goal's are (0, 0, 0)."""
        z, yaw = self.tee
        z *= cmath.rect(1, -self.goal_yaw)
        return z.real, z.imag, wrap(yaw - self.goal_yaw)

    @property
    def pusher_pos(self):
        """(x, y) of the agent in the expert's axes, m."""
        z = self.metres(self.env.agent.position) * cmath.rect(1, -self.goal_yaw)
        return z.real, z.imag

    def frame(self):
        """What obs_type="pixels" observes, without the mark of the last action: uint8 (size, size, 3)."""
        return self.env._render()          # what get_obs calls; drawing costs more than a step, and most steps are not kept

    def mask(self):
        """Where the block is: bool (size, size), True where the centre of the pixel lies on its polygon."""
        # A point (x, y) is drawn into pixel (round(x), round(y)); hence the half pixel.
        centres = (np.arange(self.size) + 0.5) * TABLE / self.size - 0.5
        z, yaw = self.tee
        x, y = (centres - self.origin.real) / 1000 - z.real, (self.origin.imag - centres[:, None]) / 1000 - z.imag
        return tee_distance(x, y, math.sin(yaw), math.cos(yaw)) < 0


def expert_for(block):
    """scripted_expert.py as a module of its own, planning with the physics of this pymunk body, and down to coverage 0.95."""
    spec = importlib.util.spec_from_file_location("scripted_expert_for_gym_pusht", ROOT / "scripted_expert.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    module.COM_Y = (BAR_CENTRE[1] - block.center_of_gravity[1]) / 1000     # -0.030: the mean of bar and stem, not weighted by area
    module.C2 = block.moment / block.mass / 1000**2    # velocity is lost each step: an impulse f moves it by f / m and r x f / I
    module.LEANS = (0.0,)                  # its shapes have no friction
    module.LENGTHS = np.geomspace(0.001, 0.3, 30)      # 0.95 of the area allows about 2 mm
    module.POS_TOL = 0.0                   # "it lies well, leave it alone" would be at 30 mm
    module.PLANS = module._plan_table()
    module.OUTCOMES = module._outcomes()
    return module


def play(world, experts, seed, stride):
    """One episode -> its kept (frame, tee_xy, mask), the number of steps until it lay well (None: never), and the best coverage."""
    world.start(seed)
    expert, kept, held, well, best = experts.ScriptedExpert(noise=NOISE, seed=seed), [], 0, None, 0.0
    while world.steps < MAX_STEPS and best <= world.env.success_threshold:
        if well is None and world.steps % stride == 0:
            z = world.tee[0]
            kept.append((world.frame(), (z.real, z.imag), world.mask()))
        best = max(best, world.step(expert.action(world)))
        x, y, yaw = world.tee_pose
        held = held + 1 if math.hypot(x, y) < POS_TOL and abs(yaw) < ANG_TOL else 0
        if well is None and (held >= HOLD_STEPS or best > world.env.success_threshold):
            well, expert = world.steps, experts.ScriptedExpert()
    return kept, well, best


def collect(seed, episodes, stride, size):
    """Play `episodes` episodes, seeds seed * episodes + e -> (dict of the file's arrays, list of report lines)."""
    world = GymPushT(size)
    experts, columns, owner, wells, bests, starts = expert_for(world.env.block), [], [], [], [], []
    for e in range(episodes):
        kept, well, best = play(world, experts, seed * episodes + e, stride)
        columns += kept
        owner += [e] * len(kept)
        wells.append(well)
        bests.append(best)
        starts.append(abs(complex(*kept[0][1])))
    frames, tee_xy, masks = (np.stack(column) for column in zip(*columns))
    count = np.bincount(vit.quadrant(*tee_xy.T), minlength=4)
    solved, lay = sum(b > world.env.success_threshold for b in bests), [w for w in wells if w]
    return {"frames": frames, "tee_xy": tee_xy, "episode": np.array(owner), "masks_block": masks}, [
        f"{episodes} episodes, {len(frames)} frames of {size} x {size}; "
        + ", ".join(f"{name} {n / len(frames):.2f}" for name, n in zip(vit.QUADRANTS, count)) + f"; starts at {np.mean(starts):.3f} m, mean",
        f"coverage {world.env.success_threshold} within {MAX_STEPS} steps: {solved} of {episodes}",
        f"hung (never within {POS_TOL} m and {ANG_TOL} rad for {HOLD_STEPS} steps): {episodes - len(lay)} of {episodes}"
        + (f"; the others took {np.mean(lay):.0f} steps, at most {max(lay)}" if lay else ""),
    ]


def main(argv=None):
    """Returns the exit status; a bad flag ends the program with one line and status 2."""
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    p.error = lambda message: p.exit(2, f"collect_gym_pusht.py: {message}\n")
    for flag, (low, high, step, default, text) in NUMBERS.items():
        p.add_argument(f"--{flag}", type=int, default=default, help=f"{text} ({low} to {high}; default: {default})")
    p.add_argument("--out", type=Path, required=True, metavar="FILE.npz", help="the file to write, for vit.py --frames")
    args = p.parse_args(argv)
    for flag, (low, high, step, *_) in NUMBERS.items():
        value = getattr(args, flag)
        if not low <= value <= high or value % step:
            p.error(f"argument --{flag}: {value} is not allowed; allowed is {low} to {high}" + f", a multiple of {step}" * (step > 1))
    if not importlib.util.find_spec("gym_pusht"):
        p.error("gym-pusht is not installed; pip install gym-pusht")
    if args.out.is_dir():
        p.error(f"argument --out: {args.out} is a folder; needed is a file")
    part = Path(f"{args.out}.part")        # written beside, then moved: never half a file
    try:
        with part.open("wb") as file:      # opened before the first episode, so that a wrong place is told at once
            data, report = collect(args.seed, args.episodes, args.stride, args.size)
            np.savez_compressed(file, **data)
        os.replace(part, args.out)
    except OSError as error:
        p.error(f"argument --out: {args.out} cannot be written ({error.strerror})")
    finally:
        if part.is_file():
            part.unlink()
    print(*report, sep="\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
