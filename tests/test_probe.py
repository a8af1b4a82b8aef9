"""Every number, against an independent way to get it or a case whose answer is known."""

import numpy as np
import pytest
import torch
from sklearn.linear_model import LinearRegression

import vit


def data(seed=0, n=200, m=80, d=12):
    rng = np.random.default_rng(seed)
    y, y2 = rng.integers(4, size=n), rng.integers(4, size=m)
    centres = rng.normal(size=(4, d))
    return centres[y] + rng.normal(size=(n, d)), y, centres[y2] + rng.normal(size=(m, d)), y2


@pytest.mark.parametrize("seed", range(3))
def test_linear_probe_equals_scikit_learn(seed):
    x, y, x2, y2 = data(seed)
    theirs = LinearRegression().fit(x, np.eye(4)[y]).predict(x2).argmax(axis=1) == y2
    ours = vit.linear_probe(x, y, x2, y2)
    assert np.array_equal(ours, theirs) and 0.3 < ours.mean() < 1


def test_linear_probe_does_not_see_an_invertible_linear_map():
    x, y, x2, y2 = data()
    a, b = np.random.default_rng(1).normal(size=(12, 12)), np.random.default_rng(2).normal(size=12)
    assert abs(np.linalg.det(a)) > 1e-3
    assert np.array_equal(vit.linear_probe(x, y, x2, y2), vit.linear_probe(x @ a + b, y, x2 @ a + b, y2))


def test_linear_probe_with_more_columns_than_rows_is_the_least_norm_solution():
    x, y, x2, y2 = data(n=30, d=100)
    one = lambda a: np.c_[a, np.ones(len(a))]
    weights = np.linalg.pinv(one(x)) @ np.eye(4)[y]
    assert np.array_equal(vit.linear_probe(x, y, x2, y2), (one(x2) @ weights).argmax(axis=1) == y2)


def test_bootstrap_of_single_frame_episodes_is_the_binomial_interval():
    n, p = 400, 0.7
    values = np.arange(n) < n * p
    low, high = vit.bootstrap_ci(values, np.arange(n), seed=0)
    half = 1.96 * (p * (1 - p) / n) ** 0.5                     # 0.045
    assert low == pytest.approx(p - half, abs=0.006) and high == pytest.approx(p + half, abs=0.006)


def test_bootstrap_is_over_episodes():
    """Ten frames an episode, all alike: the interval must be that of n / 10 independent values."""
    n, p = 40, 0.5
    values, episodes = np.repeat(np.arange(n) < n * p, 10), np.repeat(np.arange(n), 10)
    low, high = vit.bootstrap_ci(values, episodes, seed=0)
    half = 1.96 * (p * (1 - p) / n) ** 0.5                     # 0.155; by frames it would be 0.049
    assert high - low == pytest.approx(2 * half, rel=0.1)
    assert vit.bootstrap_ci(values, episodes, seed=0) == [low, high]


def test_bootstrap_has_a_seed():
    values, episodes = np.random.default_rng(0).random(50), np.arange(50)
    assert vit.bootstrap_ci(values, episodes, seed=0) == vit.bootstrap_ci(values, episodes, seed=0) != vit.bootstrap_ci(values, episodes, seed=1)


def test_bootstrap_weighs_episodes_by_their_frames():
    low, high = vit.bootstrap_ci(np.ones(7), np.array([3, 3, 3, 9, 9, 9, 9]), seed=0)
    assert low == high == 1


def rollout_from_scratch(attentions):
    """Abnar & Zuidema 2020 with full matrices (B, S, S), as their equations 1 and 2 say."""
    joint = np.eye(attentions[0].shape[-1])[None]
    for a in attentions:
        a = 0.5 * a + 0.5 * np.eye(a.shape[-1])
        joint = (a / a.sum(axis=-1, keepdims=True)) @ joint
    return joint


@pytest.mark.parametrize("depth, h, w", [(1, 64, 64), (2, 64, 64), (4, 32, 32), (2, 32, 64)])      # the last: height is not width
def test_rollout_equals_an_independent_implementation(depth, h, w):
    torch.manual_seed(0)
    gh, gw = h // vit.PATCH, w // vit.PATCH
    model, images = vit.TinyViT(24, depth, 2, 4, num_patches=gh * gw), torch.rand(3, h, w, 3) * 4 - 2
    for p in model.parameters():
        p.data.mul_(3)                                         # so that attention is not nearly uniform
    ours = vit.cls_rollout(model, images)
    x, attentions = None, []
    with torch.no_grad():
        tokens = model.patch_embed(vit.patchify(images, vit.PATCH)) + model.pos[:, 1:]
        x = torch.cat([(model.cls + model.pos[:, :1]).expand(3, -1, -1), tokens], dim=1)
        for block in model.blocks:                             # every block in full
            x = block(x)
            attentions.append(block.last_attn.numpy())
    joint = rollout_from_scratch(attentions)
    np.testing.assert_allclose(joint.sum(axis=-1), 1, atol=1e-5)
    assert ours.shape == (3, gh, gw) and ours.std() > 1e-4
    np.testing.assert_allclose(ours.reshape(3, -1), joint[:, 0, 1:], atol=1e-6)


class OneToken(torch.nn.Module):
    """A model that looks at the sum of one token only: answer 2 if it is bright, with a known log-probability."""

    def __init__(self, token):
        super().__init__()
        self.token = token

    def encode(self, tokens, shuffle_pos=None):
        return tokens[:, self.token].sum(dim=1, keepdim=True)

    def head(self, x):
        return torch.cat([torch.zeros_like(x), torch.zeros_like(x), x, torch.zeros_like(x)], dim=1)


def test_occlusion_finds_the_one_token_that_the_answer_depends_on():
    tokens = torch.zeros(2, 64, vit.PATCH_DIM)
    tokens[0, 11, :4], tokens[0, 30], tokens[1, 11, :2] = 1.0, 5.0, 1.0
    drops = vit.occlusion(OneToken(11), tokens, torch.zeros(64, vit.PATCH_DIM))
    log_p = lambda s: s - np.log(3 + np.exp(s))
    expected = np.zeros((2, 64))
    expected[0, 11], expected[1, 11] = log_p(4.0) - log_p(0.0), log_p(2.0) - log_p(0.0)
    np.testing.assert_allclose(drops, expected, atol=1e-6)


def test_occlusion_does_not_count_a_rise():
    tokens, empty = torch.zeros(1, 64, vit.PATCH_DIM), torch.zeros(64, vit.PATCH_DIM)
    tokens[0, 11, 0], empty[11, 0] = 1.0, 3.0                  # the "empty" token argues more for the answer than the token
    assert vit.occlusion(OneToken(11), tokens, empty).max() == 0


def test_occlusion_equals_the_plain_loop():
    torch.manual_seed(0)
    model, x = vit.TinyViT(24, 2, 2, 4).eval(), torch.rand(2, 64, 64, 3)
    tokens = vit.patchify(x, 8)
    empty = tokens.mean(dim=0)
    tokens[:, 5:] = empty[5:]                                  # most tokens are empty: skipping them must not matter
    ours, plain = vit.occlusion(model, tokens, empty), np.zeros((2, 64))
    with torch.no_grad():
        for b in range(2):
            whole = model.head(model.encode(tokens[b : b + 1])).double().log_softmax(-1)[0]
            for t in range(64):
                one = tokens[b : b + 1].clone()
                one[0, t] = empty[t]
                plain[b, t] = max(0, whole[whole.argmax()] - model.head(model.encode(one)).double().log_softmax(-1)[0, whole.argmax()])
    np.testing.assert_allclose(ours, plain, atol=1e-5)
    assert plain[:, :5].max() > 1e-4


def test_looks_at_counts_hits_and_mass():
    maps, touch = np.zeros((3, 64)), np.zeros((3, 64), bool)
    touch[:, :4] = True                                        # 1/16 of the area
    maps[0, 2], maps[0, 9] = 3, 1                              # peak on the object, 3/4 of the mass
    maps[1] = 1                                                # flat; its argmax is patch 0, on the object
    hit, mass = vit.looks_at(maps, touch)
    assert hit.tolist() == [True, True, False]                 # a map of zeros points nowhere
    np.testing.assert_allclose(mass, [0.75 * 16, 1, 0])


def test_on_grid_is_any_pixel_of_the_patch():
    mask = np.zeros((1, 64, 64), bool)
    mask[0, 7, 8] = mask[0, 63, 63] = True
    assert np.flatnonzero(vit.on_grid(mask)[0]).tolist() == [1, 63]


@pytest.mark.parametrize("x, y, label", [(1, 1, 0), (-1, 1, 1), (-1, -1, 2), (1, -1, 3), (0, 0, 0), (-1, 0, 1), (0, -1, 3)])
def test_quadrant(x, y, label):
    assert vit.quadrant(x, y) == label and vit.quadrant(np.array([x, x]), np.array([y, y])).tolist() == [label, label]


def test_cached_frames_are_what_the_environment_drew():
    from pusht_env import PushTEnv

    frames = vit.cache_frames(3, seed=5, stride=16)
    assert frames.images.dtype == torch.float32 and frames.images.shape[1:] == (64, 64, 3) and frames.labels.dtype == torch.int64
    assert frames.images.min() >= -1 and frames.images.max() <= 1 and np.unique(frames.episodes).tolist() == [0, 1, 2]
    env = PushTEnv()
    for e in range(3):
        first = np.flatnonzero(frames.episodes == e)[0]
        env.reset(5 + e)
        assert np.array_equal(vit.to_uint8(frames.images[first]), env.render_frame(64, 64))
        assert frames.labels[first] == vit.quadrant(*env.tee_pose[:2]) == (5 + e) % 4      # the reset's quadrant
        for name, mask in env.masks(64, 64).items():
            assert np.array_equal(frames.masks[name][first], mask)


def test_the_split_is_by_episode_and_the_last_quarter():
    train, test = vit.split_by_episode(np.repeat(np.arange(40), 3))
    assert len(train) == 90 and len(test) == 30 and test.min() == 90
    train, test = vit.split_by_episode(np.array([7, 7, 3, 3, 9]))
    assert test.tolist() == [4] and train.tolist() == [0, 1, 2, 3]


def test_the_cnn_is_random_and_position_aware_and_seeded():
    x = torch.rand(4, 64, 64, 3)
    a = vit.cnn_features(x, 1)
    assert a.shape == (4, 96) and a.dtype == np.float64
    assert np.array_equal(a, vit.cnn_features(x, 1)) and not np.allclose(a, vit.cnn_features(x, 2))
    assert not np.allclose(a, vit.cnn_features(x.flip(1), 1))
