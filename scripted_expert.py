"""A scripted expert for PushT. It knows the block's physics, and plans one push at a time.

A contact that sticks moves the block by a constant twist in the block's own frame, along an arc. (Nearly:
the contact rolls along the pusher as the block turns.) So the pose after a push is known in closed form,
and whenever the expert needs a push it looks through 17 contacts x 3 directions x 24 lengths for the one
that ends nearest to the target. Pushes through the centre of mass carry the block there, pushes beside it
steer its yaw on the way, pushes at a tip of the bar turn it. Then it goes around the block to a point just
behind the contact, and pushes.
"""

import math
import numbers

import numpy as np

from pusht_env import (
    ANG_TOL, C2, COM_Y, CONTROL_DT, POS_TOL, PUSHER_RADIUS, TARGET_POSE, WALL, tee_distance, whole_number, wrap,
)  # fmt: skip

APPROACH_SPEED = 0.55  # m/s
PUSH_SPEED = 0.08  # slow, so that a data set holds many poses of the block between start and target
MAX_STROKE = 35  # control steps; then plan anew, whatever happened
RADIAN = 0.10  # metres of position error that one radian of yaw error is worth
EFFORT = 0.02  # and that a metre of pushing costs
STANDOFF = 0.012  # where a push begins: this far from touching
CLEARANCE = 0.004  # to keep from the block on the way there
ON_THE_WAY = np.linspace(0.1, 0.9, 9)  # where to look for it
RING = 0.12  # radius of the detour about the centre of mass: the block's corners reach 0.081

# Places to touch the T, in its frame: x, y on the outline, and the direction (nx, ny) straight into it.
CONTACTS = (
    [(x, 0.015, 0.0, -1.0) for x in (-0.05, -0.03, -0.01, 0.01, 0.03, 0.05)]  # top of the bar
    + [(side * 0.045, -0.015, 0.0, 1.0) for side in (-1, 1)]  # its underside, near the tips
    + [(side * 0.06, 0.0, -side, 0.0) for side in (-1, 1)]  # its ends
    + [(side * 0.015, y, -side, 0.0) for side in (-1, 1) for y in (-0.045, -0.07, -0.095)]  # sides of the stem
    + [(0.0, -0.105, 0.0, 1.0)]  # foot of the stem
)
LEANS = (-0.2, 0.0, 0.2)  # tangential over normal force; within friction (0.3), so the contact sticks
LENGTHS = np.arange(1, 25) * 0.0125  # m, of the pusher's way


def _plan_table():
    """One row a push: contact x, y, nx, ny; the pusher's direction ux, uy; and the block's twist vx, vy,
    omega per metre of the pusher's way. All in the block's frame."""
    rows = []
    for x, y, nx, ny in CONTACTS:
        for lean in LEANS:
            fx, fy = nx - lean * ny, ny + lean * nx  # the force; the centre of mass moves along it
            rx, ry = x, y - COM_Y
            omega = (rx * fy - ry * fx) / C2
            ux, uy = fx - omega * ry, fy + omega * rx  # so the contact, and with it the pusher, moves
            way = math.sqrt(ux * ux + uy * uy)
            rows.append((x, y, nx, ny, ux / way, uy / way, fx / way, fy / way, omega / way))
    return np.array(rows)


PLANS = _plan_table()


def _outcomes():
    """Where each push of each length takes the block, seen from where it was: x, y, turn, (P, L) each."""
    vx, vy, omega = (PLANS[:, k, None] for k in (6, 7, 8))
    turn = omega * LENGTHS
    turn = np.where(np.abs(turn) < 1e-9, 1e-9, turn)  # a straight line is an arc of a huge circle
    ahead, aside = np.sin(turn) / turn * LENGTHS, (1 - np.cos(turn)) / turn * LENGTHS
    x, y = ahead * vx - aside * vy, aside * vx + ahead * vy  # of the centre of mass
    return x + COM_Y * np.sin(turn), y + COM_Y * (1 - np.cos(turn)), turn


OUTCOMES = _outcomes()


class ScriptedExpert:
    """Solves an episode of PushTEnv. Make one for each episode.

    noise: standard deviation (m/s) of the Gaussian added to each component of an action; seed: of its
    generator. The same episode, noise and seed give the same actions.
    """

    def __init__(self, noise=0.0, seed=0):
        if not (isinstance(noise, numbers.Real) and math.isfinite(noise) and noise >= 0.0):
            raise ValueError(f"noise must be a finite number >= 0 (m/s), got {noise!r}")
        self._noise = noise
        self._rng = np.random.Generator(np.random.PCG64(whole_number("seed", seed, 0)))
        self._plan = None

    def action(self, env):
        """The pusher's velocity for the next control step, float32 (2,), m/s."""
        if env.steps == 0:
            self._plan = None  # a new episode: the push planned in the last one means nothing here
        x, y, yaw = env.tee_pose
        s, c = math.sin(yaw), math.cos(yaw)
        wx, wy = env.pusher_pos[0] - x, env.pusher_pos[1] - y
        vx, vy = self._velocity((x, y, yaw), c * wx + s * wy, c * wy - s * wx)
        vx, vy = c * vx - s * vy, s * vx + c * vy
        if self._noise:
            nx, ny = self._rng.standard_normal(2).tolist()
            vx, vy = vx + self._noise * nx, vy + self._noise * ny
        return np.array((min(max(vx, -1.0), 1.0), min(max(vy, -1.0), 1.0)), np.float32)

    def _velocity(self, pose, px, py):
        """The pusher is at (px, py); its velocity. Both in the block's frame."""
        off = math.sqrt((pose[0] - TARGET_POSE[0]) ** 2 + (pose[1] - TARGET_POSE[1]) ** 2)
        if off < POS_TOL and abs(wrap(pose[2] - TARGET_POSE[2])) < ANG_TOL:
            self._plan = None  # it lies well: leave it alone
            away = PUSH_SPEED / math.sqrt(px * px + (py - COM_Y) ** 2)
            return away * px, away * (py - COM_Y)
        if self._plan is None or self._left <= 0.0 or self._age >= MAX_STROKE:
            plan, length = self._choose(pose)
            self._plan, self._left = PLANS[plan].tolist(), float(LENGTHS[length])
            self._age, self._pushing = 0, False
        self._age += 1
        x, y, nx, ny, ux, uy = self._plan[:6]
        dx, dy = x - PUSHER_RADIUS * nx - px, y - PUSHER_RADIUS * ny - py  # to where it touches
        if not self._pushing:
            sx, sy = dx - STANDOFF * nx, dy - STANDOFF * ny
            self._pushing = sx * sx + sy * sy < 0.012**2
            if not self._pushing:
                return _approach(px, py, px + sx, py + sy)
        gap = max(dx * nx + dy * ny, 0.0)
        step = min(PUSH_SPEED * CONTROL_DT, gap + self._left)
        self._left -= max(step - gap, 0.0)
        side = 0.5 * (dy * nx - dx * ny)  # back toward the contact, half of the way in a step
        return (step * ux - side * ny) / CONTROL_DT, (step * uy + side * nx) / CONTROL_DT

    def _choose(self, pose):
        """The push (row of PLANS, index into LENGTHS) that ends nearest to the target."""
        x, y, yaw = pose
        s, c = math.sin(yaw), math.cos(yaw)
        ox, oy, turn = OUTCOMES
        ex, ey = x + c * ox - s * oy - TARGET_POSE[0], y + s * ox + c * oy - TARGET_POSE[1]
        angle = np.abs((yaw + turn - TARGET_POSE[2] + math.pi) % (2 * math.pi) - math.pi)
        cost = np.sqrt(ex * ex + ey * ey) + RADIAN * angle + EFFORT * LENGTHS
        # No room for the pusher between contact and wall: not that one.
        back = PUSHER_RADIUS + STANDOFF
        bx, by = PLANS[:, 0] - back * PLANS[:, 2], PLANS[:, 1] - back * PLANS[:, 3]
        out = np.maximum(np.abs(x + c * bx - s * by), np.abs(y + s * bx + c * by)) > WALL - PUSHER_RADIUS
        return divmod(int(np.argmin(cost + out[:, None])), len(LENGTHS))


def _approach(px, py, gx, gy):
    """From (px, py) toward (gx, gy): straight if nothing is in the way, else around the block."""
    gaps = tee_distance(px + (gx - px) * ON_THE_WAY, py + (gy - py) * ON_THE_WAY, 0.0, 1.0)
    if gaps.min() < PUSHER_RADIUS + CLEARANCE:
        here, there = math.atan2(py - COM_Y, px), math.atan2(gy - COM_Y, gx)
        turn = min(max(wrap(there - here), -0.5), 0.5)
        if px * px + (py - COM_Y) ** 2 < (RING - 0.02) ** 2:
            turn = 0.0  # first straight out to the ring
        gx, gy = RING * math.cos(here + turn), RING * math.sin(here + turn) + COM_Y
    dx, dy = gx - px, gy - py
    way = max(math.sqrt(dx * dx + dy * dy), 1e-9)
    speed = min(APPROACH_SPEED, way / CONTROL_DT)
    return dx / way * speed, dy / way * speed
