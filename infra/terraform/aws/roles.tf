# A pod's rights come from its service account (IRSA), not from its node. Servers write MLflow's artifacts; jobs write DVC's
# objects and checkpoints. Nobody may delete a version or change the bucket.
locals {
  issuer = replace(aws_eks_cluster.this.identity[0].oidc[0].issuer, "https://", "")

  pods = {
    server = { account = "system:serviceaccount:cloze:server", prefixes = ["mlflow/*"] }
    job    = { account = "system:serviceaccount:cloze:job", prefixes = ["dvc/*", "checkpoints/*"] }
    efs    = { account = "system:serviceaccount:kube-system:efs-csi-controller-sa", prefixes = [] }
  }

  writers = { for name, pod in local.pods : name => pod if length(pod.prefixes) > 0 }
}

resource "aws_iam_openid_connect_provider" "this" {
  url            = aws_eks_cluster.this.identity[0].oidc[0].issuer
  client_id_list = ["sts.amazonaws.com"]
}

data "aws_iam_policy_document" "pods" {
  for_each = local.pods

  statement {
    actions = ["sts:AssumeRoleWithWebIdentity"]

    principals {
      type        = "Federated"
      identifiers = [aws_iam_openid_connect_provider.this.arn]
    }

    condition {
      test     = "StringEquals"
      variable = "${local.issuer}:sub"
      values   = [each.value.account]
    }

    condition {
      test     = "StringEquals"
      variable = "${local.issuer}:aud"
      values   = ["sts.amazonaws.com"]
    }
  }
}

resource "aws_iam_role" "pods" {
  for_each = local.pods

  name               = "${var.name}-${each.key}"
  assume_role_policy = data.aws_iam_policy_document.pods[each.key].json
}

data "aws_iam_policy_document" "bucket_of" {
  for_each = local.writers

  statement {
    actions   = ["s3:ListBucket"]
    resources = [aws_s3_bucket.this.arn]

    condition {
      test     = "StringLike"
      variable = "s3:prefix"
      values   = each.value.prefixes
    }
  }

  statement {
    actions   = ["s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:AbortMultipartUpload", "s3:ListMultipartUploadParts"]
    resources = [for prefix in each.value.prefixes : "${aws_s3_bucket.this.arn}/${prefix}"]
  }

  statement {
    actions   = ["kms:Decrypt", "kms:GenerateDataKey"]
    resources = [aws_kms_key.this.arn]
  }
}

resource "aws_iam_role_policy" "bucket_of" {
  for_each = local.writers

  name   = "bucket"
  role   = aws_iam_role.pods[each.key].id
  policy = data.aws_iam_policy_document.bucket_of[each.key].json
}

resource "aws_iam_role_policy_attachment" "efs" {
  role       = aws_iam_role.pods["efs"].name
  policy_arn = "arn:aws:iam::aws:policy/service-role/AmazonEFSCSIDriverPolicy"
}
