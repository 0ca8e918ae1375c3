data "aws_iam_policy_document" "assume" {
  for_each = toset(["eks", "ec2"])

  statement {
    actions = ["sts:AssumeRole"]

    principals {
      type        = "Service"
      identifiers = ["${each.key}.amazonaws.com"]
    }
  }
}

resource "aws_iam_role" "cluster" {
  name               = "${var.name}-cluster"
  assume_role_policy = data.aws_iam_policy_document.assume["eks"].json
}

resource "aws_iam_role_policy_attachment" "cluster" {
  role       = aws_iam_role.cluster.name
  policy_arn = "arn:aws:iam::aws:policy/AmazonEKSClusterPolicy"
}

resource "aws_eks_cluster" "this" {
  name                      = var.name
  version                   = var.kubernetes_version
  role_arn                  = aws_iam_role.cluster.arn
  enabled_cluster_log_types = ["api", "audit", "authenticator"]

  vpc_config {
    subnet_ids              = var.subnet_ids
    endpoint_private_access = true
    endpoint_public_access  = length(var.api_cidrs) > 0
    public_access_cidrs     = length(var.api_cidrs) > 0 ? var.api_cidrs : null
  }

  encryption_config {
    resources = ["secrets"]

    provider {
      key_arn = aws_kms_key.this.arn
    }
  }

  access_config {
    authentication_mode                         = "API"
    bootstrap_cluster_creator_admin_permissions = true
  }

  depends_on = [aws_iam_role_policy_attachment.cluster]
}

resource "aws_eks_addon" "this" {
  for_each = {
    vpc-cni            = jsonencode({ enableNetworkPolicy = "true" })
    coredns            = null
    kube-proxy         = null
    aws-efs-csi-driver = null
  }

  cluster_name             = aws_eks_cluster.this.name
  addon_name               = each.key
  configuration_values     = each.value
  service_account_role_arn = each.key == "aws-efs-csi-driver" ? aws_iam_role.pods["efs"].arn : null
  depends_on               = [aws_eks_node_group.servers]
}

resource "aws_iam_role" "node" {
  name               = "${var.name}-node"
  assume_role_policy = data.aws_iam_policy_document.assume["ec2"].json
}

resource "aws_iam_role_policy_attachment" "node" {
  for_each = toset(["AmazonEKSWorkerNodePolicy", "AmazonEC2ContainerRegistryPullOnly", "AmazonEKS_CNI_Policy"])

  role       = aws_iam_role.node.name
  policy_arn = "arn:aws:iam::aws:policy/${each.key}"
}

# A hop limit of 1 keeps pods from using the node's role through the metadata service.
resource "aws_launch_template" "node" {
  name_prefix = "${var.name}-"

  metadata_options {
    http_tokens                 = "required"
    http_put_response_hop_limit = 1
  }

  block_device_mappings {
    device_name = "/dev/xvda"

    ebs {
      volume_size = 200
      volume_type = "gp3"
      encrypted   = true
    }
  }
}

resource "aws_eks_node_group" "servers" {
  cluster_name    = aws_eks_cluster.this.name
  node_group_name = "servers"
  node_role_arn   = aws_iam_role.node.arn
  subnet_ids      = var.subnet_ids
  ami_type        = "AL2023_x86_64_STANDARD"
  instance_types  = ["m7i.xlarge"]

  launch_template {
    id      = aws_launch_template.node.id
    version = aws_launch_template.node.latest_version
  }

  scaling_config {
    min_size     = 1
    desired_size = 2
    max_size     = 4
  }

  depends_on = [aws_iam_role_policy_attachment.node]
}

resource "aws_eks_node_group" "gpu" {
  cluster_name    = aws_eks_cluster.this.name
  node_group_name = "gpu"
  node_role_arn   = aws_iam_role.node.arn
  subnet_ids      = [var.subnet_ids[0]] # keep the ranks of a job in one zone
  ami_type        = "AL2023_x86_64_NVIDIA"
  instance_types  = [var.gpu_instance_type]
  capacity_type   = var.gpu_spot ? "SPOT" : "ON_DEMAND"

  launch_template {
    id      = aws_launch_template.node.id
    version = aws_launch_template.node.latest_version
  }

  scaling_config {
    min_size     = 0
    desired_size = 0
    max_size     = var.gpu_nodes_max
  }

  taint { # only pods that request GPUs
    key    = "nvidia.com/gpu"
    value  = "present"
    effect = "NO_SCHEDULE"
  }

  lifecycle {
    ignore_changes = [scaling_config[0].desired_size] # set by an autoscaler or by hand
  }

  depends_on = [aws_iam_role_policy_attachment.node]
}
